"""Runs: a list with a filter bar, and one run with all that is known of it."""

import json
from typing import Any

from starlette.requests import Request

from duly.core.json_text import parsed
from duly.core.limiting import shown_lane
from duly.core.record import LogLine
from duly.core.states import DEAD, FINAL, PARENT_TAG, State, plain_tags, stored_tags
from duly.dashboard import searching
from duly.dashboard.desk import Desk
from duly.dashboard.pages import Elsewhere, NothingHere, Shown
from duly.dashboard.timeline import timeline
from duly.dashboard.waterfall import attempt_labels, waterfall
from duly.dashboard.words import pretty
from duly.limits import LOOK_RUNS, LOOKS, PAGE, PAGE_DEFAULT, SCAN_RUNS

_LOG_LINES = 500


def runs(desk: Desk, request: Request) -> Shown | Elsewhere:
    """List runs."""
    now = desk.store.now()
    text = request.query_params.get("q", "")
    cursor = request.query_params.get("before")
    search = searching.read(text, now, cursor=cursor)
    if search.run_id is not None and desk.store.get_run(search.run_id) is not None:
        return Elsewhere(f"/runs/{search.run_id}")
    found, following = ([], None) if search.run_id else desk.find(search, PAGE_DEFAULT)
    queues = desk.store.list_queues()
    return Shown(
        "runs.html",
        {
            "now": now,
            "search": search,
            "runs": desk.listed(found),
            "following": following,
            "cursor": cursor,
            "states": [
                ("all", searching.with_state(search.text, None), not search.which.states),
                *(
                    (
                        state.value,
                        searching.with_state(search.text, state.value),
                        search.which.states == (state.value,),
                    )
                    for state in State
                ),
            ],
            "scan": LOOK_RUNS * LOOKS if search.looks_inside else SCAN_RUNS,
            "suggestions": _suggestions(desk, [queue.name for queue in queues]),
        },
    )


def run(desk: Desk, request: Request) -> Shown:
    """Show one run."""
    return Shown("run.html", describe(desk, str(request.path_params["run_id"])))


def describe(desk: Desk, run_id: str) -> dict[str, Any]:
    """Return all that is known of a run."""
    store = desk.store
    found = store.get_run(run_id)
    if found is None:
        raise NothingHere(
            f"There is no run {run_id}. It may have been pruned: finished runs are kept for a "
            f"week, dead letters for a month."
        )
    now = store.now()
    attempts, steps = store.list_attempts(found.id), store.list_steps(found.id)
    logs, acts = store.list_logs(found.id, _LOG_LINES), store.list_acts(found.id, PAGE)
    lines = _by_claim(logs)
    arguments = desk.stored_arguments(found.task, found.arguments)
    tags = stored_tags(found.tags)
    parent = tags.get(PARENT_TAG)
    return {
        "now": now,
        "run": found._replace(lane=shown_lane(found.lane)),
        "tags": plain_tags(tags),
        "first_start": store.first_starts([found.id]).get(found.id, found.claimed_at),
        "attempts": [
            (attempt, label, lines.get(attempt.claim_number, []))
            for attempt, label in zip(attempts, attempt_labels(found, attempts), strict=False)
        ][::-1],
        "lines": lines.get(found.claim_number, []) if found.state == State.RUNNING else [],
        "log_count": len(logs),
        "steps": [step for step in steps if step.name],
        "rows": waterfall(found, attempts, steps, now),
        "moments": timeline(found, attempts, acts),
        "arguments": None if arguments is None else pretty(_call(arguments)),
        "result": desk.result(found) if found.state == State.SUCCEEDED else None,
        "why_hidden": desk.why_hidden(found),
        "why": desk.why(found),
        "parent": parent,
        "children": desk.children(found.id),
        "acts": acts,
        "can_cancel": found.state not in FINAL and not found.cancel_requested,
        "can_retry": found.state in FINAL,
        "is_dead": found.state in DEAD,
        "can_edit": found.state in FINAL and desk.can_edit(found),
        "step_names": [step.name for step in steps if step.name],
    }


def edit(desk: Desk, request: Request) -> Shown:
    """Show a form to change the arguments of a run and retry it."""
    context = describe(desk, str(request.path_params["run_id"]))
    return Shown("edit.html", context | {"given": context["arguments"], "error": None})


def _by_claim(logs: list[LogLine]) -> dict[int, list[LogLine]]:
    found: dict[int, list[LogLine]] = {}
    for line in logs:
        found.setdefault(line.claim_number, []).append(line)
    return found


def _call(text: str) -> str:
    """Return stored arguments with names for their two parts."""
    match parsed(text):
        case [list() as args, dict() as kwargs]:
            named = {"args": args} if args else {}
            return json.dumps(named | {"kwargs": kwargs} if kwargs or not args else named)
        case _:
            return text


def _suggestions(desk: Desk, queues: list[str]) -> list[str]:
    """Return what a filter may begin with."""
    known = {definition.name for definition in desk.tasks.definitions()}
    return [
        *(f"state:{state.value}" for state in State),
        *(searching.term("task", name) for name in sorted(known)[:100]),
        *(searching.term("queue", name) for name in queues[:50]),
        *("since:1h", "since:24h", "since:7d", "tag:name=value", "key:", "args.", "error:"),
    ]
