"""Dead letters in groups of runs that failed in the same way."""

from starlette.requests import Request

from duly.core.record import DeadLetterGroup
from duly.dashboard import search_query
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.pages import PageContent, PageNotFound, PageRedirect
from duly.limits import PAGE, PAGE_DEFAULT
from duly.store.reads import Inspector, RunFilter

_HOUR = 3_600_000_000
WINDOWS = {"1h": _HOUR, "24h": 24 * _HOUR, "7d": 168 * _HOUR, "all": None}


def dead(view: ApplicationView, request: Request) -> PageContent:
    """List the groups."""
    now = view.store.now()
    window = window_of(request)
    which = RunFilter(since=since_of(window, now), limit=PAGE_DEFAULT)
    groups = view.store.list_dead_groups(which)
    return PageContent(
        "dead.html", {"now": now, "groups": groups, "window": window, "windows": list(WINDOWS)}
    )


def with_count(shown: PageContent | PageRedirect, store: Inspector) -> PageContent | PageRedirect:
    """Add the number of dead letters, which the navigation of every page shows."""
    if isinstance(shown, PageRedirect):
        return shown
    return shown._replace(context={"dead": store.count_dead()} | shown.context)


def group(view: ApplicationView, request: Request) -> PageContent:
    """List the runs of one group."""
    now = view.store.now()
    which = group_filter(request, now)
    page = view.store.list_runs(which._replace(limit=PAGE_DEFAULT))
    if not page and which.before is None:
        raise PageNotFound(
            "This group has no dead letters any more; all were retried or discarded."
        )
    found = group_of(view, which)
    return PageContent(
        "group.html",
        {
            "now": now,
            "task": which.task,
            "fingerprint": which.fingerprint,
            "count": found.count if found else len(page),
            "group": found,
            "window": window_of(request),
            "sample": page[0] if page else None,
            "runs": view.list_rows(page),
            "following": page[-1].id if len(page) == PAGE_DEFAULT else None,
            "cursor": which.before,
        },
    )


def group_of(view: ApplicationView, which: RunFilter) -> DeadLetterGroup | None:
    """Return a group with its count, or None if it has become empty."""
    groups = view.store.list_dead_groups(RunFilter(task=which.task, since=which.since, limit=PAGE))
    return next((one for one in groups if one.fingerprint == which.fingerprint), None)


def window_of(request: Request) -> str:
    """Return the time window of the dead letters."""
    window = request.query_params.get("window", "all")
    return window if window in WINDOWS else "all"


def since_of(window: str, now: int) -> int | None:
    """Return the start of a window. None means no start."""
    ago = WINDOWS.get(window)
    return None if ago is None else now - ago


def selection_of(request: Request, now: int) -> RunFilter:
    """Return the dead letters that an address selects: one group, or all of its window."""
    which = group_filter(request, now)
    return which if which.task else which._replace(task=None, fingerprint=None)


def group_filter(request: Request, now: int) -> RunFilter:
    """Return the group of dead letters that an address selects."""
    parameters = request.query_params
    task, fingerprint = parameters.get("task", ""), parameters.get("fingerprint", "")
    cursor = search_query.read("", 0, cursor=parameters.get("before")).which.before
    if "\0" in task + fingerprint:
        raise PageNotFound("There is no such group of dead letters.")
    return RunFilter(
        states=("failed", "interrupted"),
        task=task,
        fingerprint=fingerprint,
        since=since_of(window_of(request), now),
        before=cursor,
    )
