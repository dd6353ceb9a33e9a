"""The pages' view of the application: its store, its operator actions, and redaction."""

import json
from collections.abc import Iterator, Sequence

from duly.clock import monotonic
from duly.core.call_view import CallView
from duly.core.display import display
from duly.core.record import RunRecord
from duly.core.states import PARENT_TAG, State, tags_of_caller
from duly.core.why import Reason
from duly.dashboard.protocols import (
    Application,
    Operations,
    ScheduleReads,
    SessionOperations,
    TaskLookup,
)
from duly.dashboard.search_query import Search
from duly.errors import BadOption
from duly.limits import (
    COUNT_CAP,
    COUNT_LOOKS,
    COUNT_SECONDS,
    LOOK_RUNS,
    LOOKS,
    PAGE,
    PAGE_SECONDS,
    SEARCH_SECONDS,
)
from duly.store.read_deadline import limit_read_time, seconds_left
from duly.store.reads import Inspector, RunFilter

UNKNOWN = (
    "Hidden: this process does not know the task, so it cannot tell which arguments are secret."
)
MISFIT = "Hidden: these arguments do not fit the current task, so it is unknown which are secret."
HIDDEN = "Hidden: this dashboard does not show arguments."


class ApplicationView:
    """The application that a dashboard shows."""

    def __init__(self, app: Application, *, shows_arguments: bool, writes: bool) -> None:
        self._app = app
        self.writes = writes
        self._shows_arguments = shows_arguments

    @property
    def calls(self) -> CallView:
        """The calls of runs and schedules, without secrets."""
        return CallView(self.tasks, hides_all=not self._shows_arguments)

    @property
    def store(self) -> Inspector:
        """The store, for reading."""
        return self._app.store

    @property
    def tasks(self) -> TaskLookup:
        """The tasks whose code this process has."""
        return self._app.registry

    @property
    def schedules(self) -> ScheduleReads:
        """The schedules, for reading."""
        return self._app.schedules

    @property
    def operator(self) -> Operations:
        """The operator actions. A read-only dashboard has none, even if a page omits its check."""
        if not self.writes:
            raise BadOption("this dashboard is read-only")
        return self._app

    @property
    def sessions(self) -> SessionOperations:
        """The ended sessions. Viewers of a read-only dashboard sign out too."""
        return self._app.sessions

    def wait_reason(self, run: RunRecord) -> Reason | None:
        """Return the reason that a run waits. Return None if it does not wait."""
        return self._app.runs.get(run.id).why() if run.state == State.QUEUED else None

    # -- arguments without secrets --

    def short_arguments(self, run: RunRecord) -> str:
        """Return the arguments as one short line, empty if they are hidden."""
        found = self.calls.arguments(run)
        return "" if found is None else display(found)

    def why_hidden(self, run: RunRecord) -> str:
        """Return the reason that the arguments of a run are hidden."""
        if self.calls.hides_all:
            return HIDDEN
        return MISFIT if self.calls.is_registered(run) else UNKNOWN

    def can_edit(self, run: RunRecord) -> bool:
        """Return whether all arguments are visible and the task can check them."""
        shown = self.calls.arguments(run)
        try:
            return shown is not None and json.loads(shown) == json.loads(run.arguments)
        except (ValueError, RecursionError):
            return False

    # -- runs --

    def find(self, search: Search, size: int) -> tuple[list[RunRecord], str | None]:
        """Return the runs that a search finds, newest first, and the next page's cursor."""
        if search.run_id is not None:
            return self._of_ids([search.run_id], search), None
        if search.key is not None:
            return self._of_ids(self.store.find_by_key(search.key), search), None
        which = search.which._replace(limit=size)
        if not search.looks_inside:
            runs = self.store.list_runs(which)
            if len(runs) == size:
                return runs, runs[-1].id
            return runs, self.store.reach_of(which)
        return self._look_inside(search, size)

    def pages(self, search: Search) -> Iterator[list[RunRecord]]:
        """Yield all runs that a search finds, newest first, page by page."""
        following: str | None = search.which.before
        while True:
            which = search.which._replace(before=following)
            with limit_read_time(PAGE_SECONDS):
                page, following = self.find(search._replace(which=which), PAGE)
            yield page
            if following is None:
                return

    def count(self, search: Search) -> tuple[int, bool]:
        """Return how many runs a search finds, and whether that is all. Its time is limited."""
        found, following = 0, search.which.before
        ends_at = monotonic() + COUNT_SECONDS
        for _ in range(COUNT_LOOKS):
            if monotonic() > ends_at:
                break
            which = search.which._replace(before=following)
            page, following = self.find(search._replace(which=which), PAGE)
            found += len(page)
            if following is None or found > COUNT_CAP:
                return found, following is None
        return found, False

    def _look_inside(self, search: Search, size: int) -> tuple[list[RunRecord], str | None]:
        """Examine the newest runs one by one, up to a limit."""
        found: list[RunRecord] = []
        left = seconds_left()
        ends_at = monotonic() + min(SEARCH_SECONDS, SEARCH_SECONDS if left is None else left)
        # Each read continues where the last one ended, so none examines more than it returns.
        which = search.which._replace(limit=LOOK_RUNS, scan=LOOK_RUNS)
        for _ in range(LOOKS):
            page = self.store.list_runs(which)
            for run in page:
                if search.may_fit(run) and self._has_arguments(run, search):
                    found.append(run)
                if len(found) == size or monotonic() > ends_at:
                    return found, run.id
            reached = page[-1].id if len(page) == LOOK_RUNS else self.store.reach_of(which)
            if reached is None:
                return found, None
            which = which._replace(before=reached)
        return found, which.before

    def _of_ids(self, run_ids: Sequence[str], search: Search) -> list[RunRecord]:
        runs = [run for run_id in run_ids if (run := self.store.get_run(run_id)) is not None]
        return [run for run in runs if search.selects(run) and self._has_arguments(run, search)]

    def _has_arguments(self, run: RunRecord, search: Search) -> bool:
        if not search.arguments:
            return True
        return search.fits(self.calls.arguments(run))

    def list_rows(self, runs: Sequence[RunRecord]) -> list[tuple[RunRecord, str, dict[str, str]]]:
        """Return runs as lists show them, with their arguments, tags and start.

        The start is that of the first attempt, whatever the number of attempts.
        """
        again = [run.id for run in runs if run.claim_number > 1]
        starts = self.store.first_starts(again) if again else {}
        return [
            (
                run._replace(claimed_at=starts.get(run.id, run.claimed_at)),
                self.short_arguments(run),
                tags_of_caller(run.tags),
            )
            for run in runs
        ]

    def children(self, run_id: str) -> list[RunRecord]:
        """Return the runs that a run has created and waits for."""
        return self.store.list_runs(RunFilter(tag=(PARENT_TAG, run_id), limit=PAGE, scan=PAGE))
