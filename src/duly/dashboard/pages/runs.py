"""The pages of runs: a list with a filter bar, and one run with all its details."""

import json
from typing import Any, NamedTuple

from starlette.requests import Request

from duly.core.concurrency_limits import shown_lane
from duly.core.json_text import parsed
from duly.core.record import LogLine, RunRecord, StepRecord
from duly.core.reschedule import QueuedRun, state_refusal
from duly.core.states import DEAD, FINAL, PARENT_TAG, State, plain_tags, stored_tags
from duly.core.suggestions import similar
from duly.core.unresolved_steps import effect_key, outermost_steps, unresolved_steps
from duly.core.why import current_wait
from duly.dashboard import search_query
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.formats import pretty
from duly.dashboard.pages import PageContent, PageNotFound, PageRedirect
from duly.dashboard.search_query import Search
from duly.dashboard.timeline import timeline
from duly.dashboard.waterfall import attempt_labels, waterfall
from duly.limits import LOOK_RUNS, LOOKS, PAGE, PAGE_DEFAULT, SCAN_RUNS

_LOG_LINES = 500
_MEANT = 3
_LAST_LINES = 10
"""This many log lines show how far an interrupted step came."""


def runs(view: ApplicationView, request: Request) -> PageContent | PageRedirect:
    """List runs."""
    now = view.store.now()
    text = request.query_params.get("q", "")
    cursor = request.query_params.get("before")
    search = search_query.read(text, now, cursor=cursor)
    if search.run_id is not None and view.store.get_run(search.run_id) is not None:
        return PageRedirect(f"/runs/{search.run_id}")
    is_answered = search.run_id is not None or bool(search.hints)
    found, following = ([], None) if is_answered else view.find(search, PAGE_DEFAULT)
    queues = [queue.name for queue in view.store.list_queues()]
    is_any = not (search.which.states or search.hints)
    return PageContent(
        "runs.html",
        {
            "now": now,
            "search": search,
            "runs": view.list_rows(found),
            "following": following,
            "cursor": cursor,
            "states": [
                ("all", search_query.with_term(search.text, "state", None), is_any),
                *(
                    (
                        state.value,
                        search_query.with_term(search.text, "state", state.value),
                        search.which.states == (state.value,),
                    )
                    for state in State
                ),
            ],
            "scan": LOOK_RUNS * LOOKS if search.looks_inside else SCAN_RUNS,
            "suggestions": _suggestions(view, queues),
            "meant": [] if found else _suggested_terms(view, search, queues),
        },
        422 if search.hints else 200,
    )


def run(view: ApplicationView, request: Request) -> PageContent:
    """Show one run."""
    return PageContent("run.html", describe(view, str(request.path_params["run_id"])))


def describe(view: ApplicationView, run_id: str) -> dict[str, Any]:
    """Return all details of a run."""
    store = view.store
    found = store.get_run(run_id)
    if found is None:
        raise PageNotFound(
            f"There is no run {run_id}. It may have been pruned: finished runs are kept for a "
            f"week, dead letters for a month."
        )
    now = store.now()
    attempts, steps = store.list_attempts(found.id), store.list_steps(found.id)
    logs, acts = store.list_logs(found.id, _LOG_LINES), store.list_audit_entries(found.id, PAGE)
    lines = _by_claim(logs)
    arguments = view.calls.arguments(found)
    result = view.calls.result(found) if found.state == State.SUCCEEDED else None
    held = _held(found, steps, logs)
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
        "result": None if result is None else pretty(result),
        "why_hidden": view.why_hidden(found),
        "why": view.wait_reason(found),
        "parent": parent,
        "children": view.children(found.id),
        "acts": acts,
        "can_cancel": found.state not in FINAL and not found.cancel_requested,
        "why_not_rescheduled": _why_not_rescheduled(found, current_wait(steps, attempts), now),
        "can_retry": found.state in FINAL and not held,
        "held": held,
        "resolving": None,
        "is_dead": found.state in DEAD,
        "can_edit": found.state in FINAL and not held and view.can_edit(found),
        "step_names": [step.name for step in steps if step.name],
    }


class HeldStepView(NamedTuple):
    """A step that must not start twice, and had started when its run's last attempt ended."""

    name: str
    began_at: int
    effect_key: str
    lines: list[LogLine]
    """The last log lines of its attempt."""


def _held(run: RunRecord, steps: list[StepRecord], logs: list[LogLine]) -> list[HeldStepView]:
    """Return the steps that an operator must resolve before the run can continue."""
    if run.state not in FINAL or run.state == State.SUCCEEDED:
        return []
    begun, lines = unresolved_steps(steps), _by_claim(logs)
    return [
        HeldStepView(
            name,
            begun[name].began_at,
            effect_key(run.id, steps, name),
            lines.get(begun[name].claim_number, [])[-_LAST_LINES:],
        )
        for name in outermost_steps(begun)
    ]


def edit(view: ApplicationView, request: Request) -> PageContent:
    """Show a form to change the arguments of a run and retry it."""
    context = describe(view, str(request.path_params["run_id"]))
    return PageContent("edit.html", context | {"given": context["arguments"], "error": None})


STARTS = (
    ("", "as it is"),
    ("0", "now"),
    ("5m", "in 5 minutes"),
    ("1h", "in 1 hour"),
    ("1d", "in 1 day"),
    ("at", "at the time below"),
)
"""When a rescheduled run may start: the value in the form, and the words."""
UNCHANGED = {"start": "", "at": "", "priority": "", "queue": "", "reason": ""}
"""The empty form of a reschedule."""


def reschedule(view: ApplicationView, request: Request) -> PageContent:
    """Show a form to change when, how urgently and in which queue a run starts."""
    return reschedule_form(view, str(request.path_params["run_id"]), UNCHANGED, None)


def reschedule_form(
    view: ApplicationView, run_id: str, given: dict[str, str], error: str | None
) -> PageContent:
    """Show the form with what was given, and why it was refused, if it was."""
    context = describe(view, run_id) | {"starts": STARTS, "given": given, "error": error}
    return PageContent("reschedule.html", context, 200 if error is None else 422)


def _why_not_rescheduled(run: RunRecord, wait: StepRecord | None, now: int) -> str | None:
    """Return why an operator cannot reschedule a run, or None if that is possible."""
    if run.state != State.QUEUED:
        return state_refusal(run.state)
    queued = QueuedRun(
        run.queue,
        run.lane,
        run.claim_number,
        run.due_at,
        run.expires_at,
        None if wait is None else wait.name,
        now,
    )
    return queued.refusal(now)


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


def _suggested_terms(
    view: ApplicationView, search: Search, queues: list[str]
) -> list[tuple[str, str]]:
    """Return terms with existing names that are similar to the unknown names in a search."""
    if search.which.task is None and search.which.queue is None:
        return []
    tasks = {definition.name for definition in view.tasks.definitions()}
    for worker in view.store.list_workers():
        tasks.update(json.loads(worker.tasks))
    asked = (("task", search.which.task, tasks), ("queue", search.which.queue, set(queues)))
    return [
        (search_query.term(kind, name), search_query.with_term(search.text, kind, name))
        for kind, given, known in asked
        if given is not None and given not in known
        for name in similar(given, known)[:_MEANT]
    ]


def _suggestions(view: ApplicationView, queues: list[str]) -> list[str]:
    """Return suggestions for the start of a filter."""
    known = {definition.name for definition in view.tasks.definitions()}
    return [
        *(f"state:{state.value}" for state in State),
        *(search_query.term("task", name) for name in sorted(known)[:100]),
        *(search_query.term("queue", name) for name in queues[:50]),
        *("since:1h", "since:24h", "since:7d", "tag:name=value", "key:", "args.", "error:"),
    ]
