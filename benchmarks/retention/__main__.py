"""Measures what deleting ended runs costs, and on PostgreSQL what partitions would cost."""

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Figure, Machine, show, table, write_json
from benchmarks.retention import partitions, pruning
from benchmarks.retention.stores import Filled, filled_postgres, filled_sqlite


def main() -> int:
    """Measure and print the figures. Those of partitions miss their target, so none fails."""
    arguments = _parser().parse_args()
    # SIGTERM also cleans up servers and folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    machine = Machine.here_and_now()
    stores: dict[str, str] = {}
    figures = []
    for figure in _measured(arguments, stores):
        print(f"{figure.name}: {show(figure.value)} {figure.unit}", file=sys.stderr, flush=True)
        figures.append(figure)
    print("\n".join(stores.values()))
    print(table(figures))
    if arguments.json is not None:
        write_json(arguments.json, machine, stores, figures)
    return 0


def _measured(arguments: argparse.Namespace, stores: dict[str, str]) -> Iterator[Figure]:
    sizes = {"rounds": arguments.rounds, "seconds": arguments.seconds}
    if arguments.store in {"sqlite", "both"}:
        with filled_sqlite(arguments.sqlite_rows or arguments.rows) as sqlite:
            _note(stores, sqlite)
            yield from pruning.measure(sqlite, **sizes)
    if arguments.store in {"postgres", "both"}:
        with filled_postgres(arguments.rows, arguments.postgres_version) as postgres:
            _note(stores, postgres)
            yield from partitions.measure(postgres, **sizes)
            yield partitions.measure_inserts(postgres, arguments.rounds, "before any prune")
            yield from pruning.measure(postgres, **sizes)
            yield partitions.measure_inserts(postgres, arguments.rounds, "after prunes")


def _note(stores: dict[str, str], filled: Filled) -> None:
    stores[filled.name] = filled.described
    print(f"{filled.count:,} runs are in {filled.described} …", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retention", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--rows", type=int, default=1_000_000, help="ended runs")
    parser.add_argument("--sqlite-rows", type=int, help="ended runs on SQLite, if not as many")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each part of a round")
    parser.add_argument(
        "--postgres-version", type=int, metavar="MAJOR", help="default: the newest one found"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
