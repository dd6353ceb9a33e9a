"""`app.bulk`: operator actions on many runs.

Any process can show such an action, and another process continues it if its own process dies.
"""

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
from duly.store.ops.bulk import AdvanceBulk, RunAction, StartBulk, TakeBulk
from duly.store.ops.operators import Cancel, DiscardDead


class BulkActionRequest(NamedTuple):
    """A request for an operator action on many runs."""

    id: str
    """The id of a form submission. Submitting one form twice starts one action."""
    verb: str
    selection: str
    """The selected runs, as JSON. Two unfinished actions with the same text are one action."""
    total: int
    noun: str
    actor: str
    reason: str


class BulkPage(NamedTuple):
    """The next runs of an action."""

    runs: tuple[RunRecord, ...]
    reached: str | None
    """The last run that was checked."""
    skipped: int = 0
    """The number of selected runs that the action cannot be applied to."""
    is_last: bool = False


class BulkActions:
    """Operator actions on many runs."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host
        self._runs = Runs(host)

    def start(self, asked: BulkActionRequest, *, owner: str) -> str:
        """Start an action and write its audit entry. Return its id, or that of an identical one."""
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
        found: str = self._app.store.do(op)
        return found

    def take_over(self, owner: str, *, lease: float) -> list[str]:
        """Take over all actions whose process has given no sign for `lease` seconds."""
        taken: list[str] = self._app.store.do(TakeBulk(owner, round(lease * MICROSECONDS)))
        return taken

    def advance(self, act: BulkAction, page: BulkPage) -> bool:
        """Apply the action to a page of runs. Return False if another process has taken it over."""
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
        """End an action that cannot be continued. Completed parts are not undone."""
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
        is_ours: bool = self._app.store.do(op)
        return is_ours
