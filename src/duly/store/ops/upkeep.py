"""Upkeep of a store: workers register, due runs become ready, old runs are deleted."""

from typing import NamedTuple

from duly.clock import MICROSECONDS
from duly.limits import ACT_RETENTION_SECONDS, SESSION_SECONDS
from duly.store.ops.op import Facts, Phase, op


class DutyTurn(NamedTuple):
    """Makes an op conditional: if another worker has the duty now, the answer is None.

    Only PostgreSQL looks at it. SQLite has one writer, and carries out every op.
    """

    duty: str
    seconds: float = 0.0
    """The interval of the duty. With 0, only no two workers have it at the same time."""


@op(Facts(Phase.UPDATE, "operate"))
class RegisterWorker(NamedTuple):
    """Make a worker known and live. Repeated, it tells of tasks that were defined since."""

    worker_id: str
    host: str
    pid: int
    lease_seconds: float
    queues: str
    tasks: str
    lanes: str = "{}"
    """The lane of each task in this worker, as JSON."""
    retentions: str = "{}"
    """By task, as JSON: for how many microseconds its runs are kept, if the task says so."""
    version: str | None = None
    """The version of the application, if it has one."""
    engine: str | None = None
    """The versions of duly and Python."""

    def answer(self) -> None:
        """Return the type of the answer."""
        raise NotImplementedError


class Ticked(NamedTuple):
    """The result of a Tick."""

    promoted: int
    parked: int
    expired: int
    next_due_in: int | None
    """Microseconds until the next run becomes due."""
    has_more: bool = False
    """True if it left runs because there were many, or because their arguments are large."""
    dead_rows: int = 0
    """How many dead rows claims step over. The store reads it, and the answer to callers is 0."""


@op(Facts(Phase.OPERATE, "operate", is_alone=True))
class Tick(NamedTuple):
    """Make due runs ready, park and unpark runs, and cancel expired runs, up to `limit` of each."""

    limit: int
    turn: DutyTurn | None = None

    def answer(self) -> Ticked | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError


class PrunePosition(NamedTuple):
    """Where the next prune continues, in microseconds since 1970."""

    after: int = 0
    """The end of a run, in the search for runs that are kept for a shorter time."""
    ended_from: int = 0
    """The end of a run, in the search for runs whose usual time is over."""
    kept_from: int = 0
    """The end of a retention, in the search for runs that were kept for another time."""


class Pruned(NamedTuple):
    """The result of a Prune."""

    runs: int
    """The number of deleted runs."""
    most: int
    """The largest number of any kind. It is the limit if there may be more."""
    position: PrunePosition
    """For the next Prune."""


@op(Facts(Phase.OPERATE, "operate", is_alone=True))
class Prune(NamedTuple):
    """Delete what ended more than `older_than` microseconds ago, up to `limit` of each kind.

    A run is kept for as long as its task says, and never deleted before its key.
    """

    older_than: int
    limit: int
    dead_older_than: int | None = None
    """The same for dead letters, if they are kept for another time."""
    acts_older_than: int = round(ACT_RETENTION_SECONDS) * MICROSECONDS
    position: PrunePosition = PrunePosition()
    turn: DutyTurn | None = None

    @property
    def acts_kept(self) -> int:
        """For how many microseconds audit entries are kept: a sign-out outlives its session."""
        return max(self.acts_older_than, SESSION_SECONDS * MICROSECONDS)

    def answer(self) -> Pruned | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", is_alone=True))
class RollUpCounts(NamedTuple):
    """Add up counts of ended runs that have grown old, up to `limit` of each span.

    The answer is the largest number of counts of one span.
    """

    limit: int
    turn: DutyTurn | None = None

    def answer(self) -> int | None:
        """Return the type of the answer. It is None if another worker has the duty."""
        raise NotImplementedError
