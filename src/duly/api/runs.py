"""`app.runs`: list, cancel, reschedule and retry runs."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from duly.app_protocol import AppProtocol
from duly.core.amounts import instant
from duly.core.concurrency_limits import with_slot
from duly.core.key import check_run_id, check_storable
from duly.core.record import RunRecord
from duly.core.states import State
from duly.errors import BadOption, RunNotFound
from duly.limits import PAGE, PAGE_DEFAULT
from duly.run import Run
from duly.store.ops.operators import RetryRun
from duly.store.reads import RunFilter
from duly.task import Task


class Page(list[Run[Any]]):
    """Runs, newest first. `cursor` continues the list, and is None at its end."""

    def __init__(self, runs: Sequence[Run[Any]], cursor: str | None) -> None:
        super().__init__(runs)
        self.cursor = cursor


class Filter(NamedTuple):
    """A filter of runs. None matches any value."""

    state: str | Sequence[str] | None = None
    task: "str | Task[..., Any] | None" = None
    queue: str | None = None
    tag: str | tuple[str, str] | None = None
    since: datetime | None = None
    fingerprint: str | None = None

    def resolve(self, *, limit: int, cursor: str | None, scan: int | None = None) -> RunFilter:
        """Check the filter and return the form that stores use."""
        if not 1 <= limit <= PAGE:
            message = f"limit must be from 1 to {PAGE}, not {limit}"
            raise BadOption(message)
        return RunFilter(
            states=_states(self.state),
            task=self.task.name if isinstance(self.task, Task) else _text("task", self.task),
            queue=_text("queue", self.queue),
            tag=_tag(self.tag),
            fingerprint=_text("fingerprint", self.fingerprint),
            since=None if self.since is None else instant("since", self.since),
            before=_cursor(cursor),
            limit=limit,
            scan=scan,
        )


class Runs:
    """Runs by id and by filter."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host

    def get(self, run_id: str) -> Run[Any]:
        """Return one run, or raise RunNotFound."""
        record = self._app.store.get_run(check_run_id(run_id))
        if record is None:
            raise RunNotFound(run_id)
        return Run(self._app, record.id, record=record)

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
        """Return a page of runs, newest first. `tag` is "name=value"."""
        which = Filter(state, task, queue, tag, since, fingerprint)
        return self.page(which, limit=limit, cursor=cursor)

    def page(
        self, which: Filter, *, limit: int, cursor: str | None = None, scan: int | None = None
    ) -> Page:
        """Return a page of the runs that a filter selects.

        If no index matches the filter, at most `scan` runs are read. The page may then have fewer
        than `limit` runs, or none, although its cursor leads to more.
        """
        # Without a filter every run matches, so the newest are found at once.
        bound = None if which == Filter() else scan
        resolved = which.resolve(limit=limit, cursor=cursor, scan=bound)
        records = self._app.store.list_runs(resolved)
        runs = [Run[Any](self._app, record.id, record=record) for record in records]
        is_full = len(records) == limit
        return Page(runs, records[-1].id if is_full else self._app.store.reach_of(resolved))

    def cancel(self, run_id: str, *, actor: str | None = None, reason: str = "") -> str:
        """Cancel a run; see `Run.cancel`."""
        return Run[Any](self._app, run_id).cancel(actor=actor, reason=reason)

    def reschedule(
        self,
        run_id: str,
        *,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Run[Any]:
        """Change when, how urgently and in which queue a run starts; see `Run.reschedule`."""
        run = Run[Any](self._app, run_id)
        return run.reschedule(
            delay=delay, at=at, priority=priority, queue=queue, actor=actor, reason=reason
        )

    def retry(
        self,
        run_id: str,
        *,
        actor: str | None = None,
        reason: str = "",
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        fresh_effects: bool = False,
        from_step: str | None = None,
    ) -> Run[Any]:
        """Queue a final run again, perhaps with other arguments, checked against the signature."""
        run = Run[Any](self._app, run_id)
        return run.retry(
            actor=actor,
            reason=reason,
            arguments=arguments,
            fresh_effects=fresh_effects,
            from_step=from_step,
        )

    def resolve(
        self,
        run_id: str,
        *,
        done: bool,
        result: object = None,
        step: str | None = None,
        actor: str | None = None,
        reason: str = "",
    ) -> Run[Any]:
        """Record what happened to the step that a run was interrupted in; see `Run.resolve`."""
        run = Run[Any](self._app, run_id)
        return run.resolve(done=done, result=result, step=step, actor=actor, reason=reason)

    def redrive_of(self, run: RunRecord, actor: str, reason: str) -> RetryRun:
        """Return the op that queues a final run again, unless it has changed since it was read."""
        definition = self._app.registry.find(run.task)
        return RetryRun(
            run.id,
            actor,
            reason,
            states=(run.state,),
            generation=run.generation,
            lane=None if definition is None else with_slot(run.lane, definition.slot),
            other_names=self._app.registry.other_names(run.task),
        )


def every_run(runs: Runs, which: Filter, *, page_size: int = PAGE) -> Iterator[Run[Any]]:
    """Yield all runs that a filter selects, newest first. They are read page by page."""
    cursor = None
    while True:
        page = runs.page(which, limit=page_size, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


def _states(state: str | Sequence[str] | None) -> tuple[str, ...]:
    if state is None:
        return ()
    names = (state,) if isinstance(state, str) else tuple(state)
    known = [member.value for member in State]
    for name in names:
        if name not in known:
            message = f"there is no state {name!r}; the states are {', '.join(known)}"
            raise BadOption(message)
    return names


def _tag(tag: str | tuple[str, str] | None) -> tuple[str, str] | None:
    if tag is None:
        return None
    if isinstance(tag, tuple):
        name, value = tag
    else:
        name, equals, value = tag.partition("=")
        if not equals or not name:
            message = f"a tag filter must have the form name=value, not {tag!r}"
            raise BadOption(message)
    for text in (name, value):
        check_storable("tag", text)
    return name, value


def _text(what: str, text: str | None) -> str | None:
    if text is not None:
        check_storable(what, text)
    return text


def _cursor(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        return check_run_id(cursor)
    except RunNotFound:
        message = f"cursor {cursor!r:.80} is not valid; pass a cursor that a list returned"
        raise BadOption(message) from None
