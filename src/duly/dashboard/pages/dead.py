"""Dead letters: groups of runs that failed alike."""

from starlette.requests import Request

from duly.dashboard import searching
from duly.dashboard.desk import Desk
from duly.dashboard.pages import NothingHere, Shown
from duly.dashboard.pages.runs import tags_of
from duly.limits import PAGE_DEFAULT
from duly.store.protocol import RunFilter

_HOUR = 3_600_000_000
WINDOWS = {"1h": _HOUR, "24h": 24 * _HOUR, "7d": 168 * _HOUR, "all": None}


def dead(desk: Desk, request: Request) -> Shown:
    """List the groups."""
    now = desk.store.now()
    window = request.query_params.get("window", "all")
    window = window if window in WINDOWS else "all"
    ago = WINDOWS[window]
    which = RunFilter(since=None if ago is None else now - ago, limit=PAGE_DEFAULT)
    groups = desk.store.list_dead_groups(which)
    return Shown(
        "dead.html", {"now": now, "groups": groups, "window": window, "windows": list(WINDOWS)}
    )


def group(desk: Desk, request: Request) -> Shown:
    """List the runs of one group."""
    now = desk.store.now()
    which = group_filter(request)
    page = desk.store.list_runs(which._replace(limit=PAGE_DEFAULT))
    if not page and which.before is None:
        raise NothingHere("There is no dead letter in this group any more; all were seen to.")
    found = [
        one
        for one in desk.store.list_dead_groups(RunFilter(task=which.task, limit=200))
        if one.fingerprint == which.fingerprint
    ]
    return Shown(
        "group.html",
        {
            "now": now,
            "task": which.task,
            "fingerprint": which.fingerprint,
            "count": found[0].count if found else len(page),
            "group": found[0] if found else None,
            "sample": page[0] if page else None,
            "runs": [(run, desk.short_arguments(run), tags_of(run)) for run in page],
            "following": page[-1].id if len(page) == PAGE_DEFAULT else None,
            "cursor": which.before,
        },
    )


def group_filter(request: Request) -> RunFilter:
    """Return which dead letters an address is about."""
    parameters = request.query_params
    task, fingerprint = parameters.get("task", ""), parameters.get("fingerprint", "")
    cursor = searching.read("", 0, cursor=parameters.get("before")).which.before
    if "\0" in task + fingerprint:
        raise NothingHere("There is no such group of dead letters.")
    return RunFilter(
        states=("failed", "interrupted"), task=task, fingerprint=fingerprint, before=cursor
    )
