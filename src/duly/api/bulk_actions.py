"""`app.bulk`: acts on many runs that any process can show, and continue if theirs dies."""

import hashlib
from collections.abc import Callable
from typing import NamedTuple

from duly.actor import resolve_actor
from duly.api.runs import Runs
from duly.app_protocol import AppProtocol
from duly.clock import MICROSECONDS
from duly.core.key import check_run_id
from duly.core.record import BulkAction, RunRecord
from duly.limits import ERROR_CHARACTERS
from duly.run import check_reason
from duly.store.bulk_ops import AdvanceBulk, RunAction, StartBulk, TakeBulk
from duly.store.ops import Cancel, DiscardDead


class BulkActionRequest(NamedTuple):
    """An act on many runs that somebody asks for."""

    id: str
    """The ticket of a form: the same one starts one act."""
    verb: str
    selection: str
    """Which runs, as JSON. The same text under way is one act."""
    total: int
    noun: str
    actor: str
    reason: str


class BulkPage(NamedTuple):
    """The next runs of an act."""

    runs: tuple[RunRecord, ...]
    reached: str | None
    """The last run that was looked at."""
    skipped: int = 0
    """How many were selected that cannot be acted on."""
    is_last: bool = False


class BulkActions:
    """Acts on many runs."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host
        self._runs = Runs(host)

    def start(self, asked: BulkActionRequest, *, owner: str) -> str:
        """Begin an act, with its line in the audit; return its id, or that of the same one."""
        said = f"{asked.verb} {asked.selection}"
        op = StartBulk(
            check_run_id(asked.id),
            asked.verb,
            asked.selection,
            hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest(),
            asked.total,
            owner,
            f"{asked.verb} {asked.total} {asked.noun}{'s' * (asked.total != 1)}",
            resolve_actor(asked.actor),
            check_reason(asked.reason),
        )
        found: str = self._app.store.apply([op])[0]
        return found

    def take_over(self, owner: str, *, lease: float) -> list[str]:
        """Become the owner of all acts whose process has been silent for so many seconds."""
        taken: list[str] = self._app.store.apply([TakeBulk(owner, round(lease * MICROSECONDS))])[0]
        return taken

    def advance(self, act: BulkAction, page: BulkPage) -> bool:
        """Act on a page of runs; return False if another process continues the act, or has."""
        make = self._op_of(act)
        return self._apply(
            AdvanceBulk(
                act.id,
                act.owner,
                act.reached,
                page.reached,
                tuple(map(make, page.runs)),
                page.skipped,
                page.is_last,
            )
        )

    def fail(self, act: BulkAction, error: str) -> bool:
        """End an act that cannot be continued; what was done stays done."""
        words = error.replace("\0", "")[:ERROR_CHARACTERS]
        return self._apply(
            AdvanceBulk(act.id, act.owner, act.reached, act.reached, is_over=True, error=words)
        )

    def _op_of(self, act: BulkAction) -> Callable[[RunRecord], RunAction]:
        match act.verb:
            case "retry":
                return lambda run: self._runs.redrive_of(run, act.actor, act.reason)
            case "discard":
                return lambda run: DiscardDead(run.id, act.actor, act.reason)
        return lambda run: Cancel(run.id, act.actor, act.reason)

    def _apply(self, op: AdvanceBulk) -> bool:
        is_ours: bool = self._app.store.apply([op])[0]
        return is_ours
