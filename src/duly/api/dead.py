"""`app.dead`: list, retry and discard dead letters."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from duly.actor import resolve_actor
from duly.api.bulk_writes import BulkResult, Progress, apply_each
from duly.api.runs import Filter, Page, Runs, every_run
from duly.app_protocol import AppProtocol
from duly.core.amounts import check_rate
from duly.core.record import DeadLetterGroup, RunRecord
from duly.core.states import DEAD
from duly.errors import BadOption
from duly.limits import PAGE_DEFAULT
from duly.run import Run, check_reason
from duly.store.ops.operators import DiscardDead, RetryRun
from duly.task import Task

_DEAD = tuple(sorted(DEAD))


class DeadRuns:
    """Runs that ended as failed or interrupted and wait for a person."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host
        self._runs = Runs(host)

    def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        tag: str | tuple[str, str] | None = None,
        since: datetime | None = None,
        fingerprint: str | None = None,
        limit: int = PAGE_DEFAULT,
        cursor: str | None = None,
    ) -> Page:
        """Return a page of dead letters, newest first."""
        which = Filter(_only_dead(state), task, queue, tag, since, fingerprint)
        return self._runs.page(which, limit=limit, cursor=cursor)

    def groups(
        self,
        *,
        task: str | Task[..., Any] | None = None,
        queue: str | None = None,
        since: datetime | None = None,
        limit: int = PAGE_DEFAULT,
    ) -> Sequence[DeadLetterGroup]:
        """Return dead letters by task and error fingerprint, the largest group first."""
        which = Filter(None, task, queue, None, since)
        return self._app.store.list_dead_groups(which.resolve(limit=limit, cursor=None))

    def retry(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        which: Filter | None = None,
        rate: float | None = None,
        actor: str | None = None,
        reason: str = "",
        progress: Progress | None = None,
    ) -> BulkResult:
        """Retry dead letters by id or by filter, at most `rate` per second.

        Each is retried once, even if several callers do this at the same time.
        """
        who, why = resolve_actor(actor), check_reason(reason)

        def op(run: RunRecord) -> RetryRun:
            return self._runs.redrive_of(run, who, why)._replace(states=_DEAD)

        return self._each(run_ids, which, op, rate=rate, progress=progress)

    def discard(
        self,
        run_ids: str | Sequence[str] | None = None,
        *,
        which: Filter | None = None,
        actor: str | None = None,
        reason: str,
        progress: Progress | None = None,
    ) -> BulkResult:
        """End dead letters as cancelled, with a reason."""
        if not reason:
            message = "discarding needs a reason, which is stored with the run"
            raise BadOption(message)
        who, why = resolve_actor(actor), check_reason(reason)

        def op(run: RunRecord) -> DiscardDead:
            return DiscardDead(run.id, who, why)

        return self._each(run_ids, which, op, rate=None, progress=progress)

    def count(self, which: Filter) -> int:
        """Return how many dead letters a filter selects now."""
        return sum(1 for _ in self._targets(None, which))

    def _each(
        self,
        run_ids: str | Sequence[str] | None,
        which: Filter | None,
        op: Callable[[RunRecord], RetryRun | DiscardDead],
        *,
        rate: float | None,
        progress: Progress | None,
    ) -> BulkResult:
        if (run_ids is None) == (which is None):
            message = "name dead letters either by id or by filter"
            raise BadOption(message)
        check_rate(rate)
        ops = (op(run.record) for run in self._targets(run_ids, which))
        return apply_each(self._app.store, ops, rate=rate, progress=progress)

    def _targets(
        self, run_ids: str | Sequence[str] | None, which: Filter | None
    ) -> Iterator[Run[Any]]:
        if which is not None:
            yield from every_run(self._runs, which._replace(state=_only_dead(which.state)))
        elif run_ids is not None:
            named = (run_ids,) if isinstance(run_ids, str) else tuple(run_ids)
            # All ids are looked up before any run is changed, so a wrong id leaves nothing half
            # done.
            yield from [self._runs.get(run_id) for run_id in named]


def _only_dead(state: str | Sequence[str] | None) -> Sequence[str]:
    if state is None:
        return _DEAD
    names = [state] if isinstance(state, str) else list(state)
    for name in names:
        if name not in _DEAD:
            message = f"dead letters are {' or '.join(_DEAD)}, not {name!r}"
            raise BadOption(message)
    return names
