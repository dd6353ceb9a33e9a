"""The amount of work for each figure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """Counts of one run of the benchmarks."""

    rounds: int = 5
    drain_runs: int = 30_000
    rested_bursts: int = 2
    rest_seconds: float = 70.0
    """Longer than PostgreSQL's autovacuum_naptime, so that it vacuums the emptied tables."""
    single_enqueues: int = 1_000
    concurrent_callers: int = 100
    enqueues_per_caller: int = 200
    bulk_enqueues: int = 60_000
    spaced_enqueues: int = 500
    committing_threads: int = 24
    committing_seconds: float = 4.0
    settle_down_seconds: float = 3.0
    """The pause after the last run of a worker before it is measured as idle."""
    idle_seconds: float = 60.0
    piled_runs: int = 1_000_000
    imports: int = 20
    schedules: int = 99_000
    due_schedules: int = 1_000
    spaced_schedules: int = 100
    seconds_ahead: float = 4.0
    """Long enough to write all schedules before the first is due."""
    fleets: tuple[int, ...] = (2, 8, 32)
    fleet_warm_up: int = 50
    fleet_enqueues: int = 500
    fleet_rest_seconds: float = 10.0
    fleet_idle_seconds: float = 30.0
    beating_fleets: tuple[tuple[int, int], ...] = ((50, 20), (1_000, 1))
    """Counts of supervisors and of workers per supervisor. An embedded worker supervises itself."""


FULL = Sizes()
QUICK = Sizes(
    rounds=1,
    drain_runs=1_000,
    rested_bursts=1,
    rest_seconds=0.2,
    single_enqueues=50,
    enqueues_per_caller=10,
    bulk_enqueues=2_500,
    spaced_enqueues=10,
    committing_threads=4,
    committing_seconds=0.2,
    settle_down_seconds=0.2,
    idle_seconds=1.0,
    piled_runs=50_000,
    imports=5,
    schedules=1_000,
    due_schedules=50,
    spaced_schedules=3,
    seconds_ahead=1.0,
    fleets=(2,),
    fleet_warm_up=2,
    fleet_enqueues=10,
    fleet_rest_seconds=0.5,
    fleet_idle_seconds=0.5,
    beating_fleets=((8, 2), (16, 1)),
)
