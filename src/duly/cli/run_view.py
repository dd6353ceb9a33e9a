"""One run in full, the same for `runs show` and `dead show`."""

import json
from typing import Any

import click

from duly.api.json_forms import ATTEMPT, AUDIT_ENTRY, LOG_LINE, run_document, step_document
from duly.app import Duly
from duly.cli.arguments import ArgumentView
from duly.cli.output import print_block, print_json, print_line
from duly.cli.run_table import progress_of, run_note
from duly.cli.session import CommandSession
from duly.cli.tables import print_fields, print_heading
from duly.core.display import display_action
from duly.core.record import AttemptRecord, AuditEntry, LogLine, RunRecord, StepRecord
from duly.core.states import State
from duly.core.time_text import duration, shown_instant, utc_text
from duly.limits import LOG_LINES_PER_ATTEMPT, PAGE
from duly.run import Run

show_args = click.option(
    "--show-args", is_flag=True, help="Show arguments even if duly cannot tell which are secret."
)


def print_run(app: Duly, session: CommandSession, run_id: str, *, show_args: bool) -> None:
    """Print a run with its record, attempts, steps, logs and audit entries."""
    run = app.runs.get(run_id)
    view = ArgumentView(app, session, show=show_args)
    attempts = run.attempts()
    steps = run.steps()
    logs = run.logs(limit=LOG_LINES_PER_ATTEMPT)
    acts = app.store.list_audit_entries(run.id, PAGE)[::-1]
    if session.as_json:
        print_json(
            {
                "run": run_document(run.record, view.calls),
                "attempts": [ATTEMPT.document(attempt) for attempt in attempts],
                "steps": [step_document(run.record, step, view.calls) for step in steps],
                "logs": [LOG_LINE.document(line) for line in logs],
                "acts": [AUDIT_ENTRY.document(act) for act in acts],
            }
        )
        return
    now = app.store.now()
    print_fields(_fields(run.record, view, now, why=_why_text(run)))
    for attempt in attempts:
        _print_attempt(attempt)
    _print_steps(run.record, steps, view)
    _print_logs(logs)
    _print_audit_entries(acts)


def _why_text(run: Run[Any]) -> str:
    """Return what a queued run waits for; empty for others."""
    return str(run.why()) if run.record.state == State.QUEUED else ""


def _fields(run: RunRecord, view: ArgumentView, now: int, *, why: str) -> list[tuple[str, str]]:
    return [
        ("run", run.id),
        ("task", run.task),
        ("state", run.state),
        ("note", run_note(run, now)),
        ("why", why),
        ("queue", run.queue),
        ("priority", str(run.priority)),
        ("key", run.key or ""),
        ("tags", run.tags or ""),
        ("call", view.full(run)),
        ("result", view.result_text(run) if run.state == State.SUCCEEDED else ""),
        ("progress", progress_of(run)),
        ("attempt", _attempt_text(run)),
        ("retried", _retried_text(run)),
        ("worker", run.worker_id or ""),
        ("made", shown_instant(run.created_at, now)),
        ("due", shown_instant(run.due_at, now)),
        ("expires", shown_instant(run.expires_at, now)),
        ("claimed", shown_instant(run.claimed_at, now)),
        ("finished", shown_instant(run.finished_at, now)),
        ("fingerprint", run.fingerprint or ""),
    ]


def _attempt_text(run: RunRecord) -> str:
    """Return the number of the attempt, with the reasons for earlier ones."""
    why = []
    if run.retries_used:
        why.append(f"retries used: {run.retries_used}")
    if run.crashes:
        why.append(f"its worker died while running it, times: {run.crashes}")
    return f"{run.attempt} ({', '.join(why)})" if why else str(run.attempt)


def _retried_text(run: RunRecord) -> str:
    """Return how often operators have retried a run; empty for never."""
    retries = run.generation - 1
    times = "once" if retries == 1 else f"{retries} times"
    return f"{times}, by an operator" if retries else ""


_UNTIMED = frozenset({"lost", "stopped", "handed_back"})
"""Outcomes that another process recorded, which does not know when the task ended."""


def _print_attempt(attempt: AttemptRecord) -> None:
    took = ""
    if attempt.started_at is not None and attempt.outcome not in _UNTIMED:
        took = f" after {duration(attempt.finished_at - attempt.started_at)}"
    retries = attempt.generation - 1
    again = f" after operator retry {retries}" if retries else ""
    print_heading(f"attempt {attempt.attempt}{again}: {attempt.outcome}{took}")
    if attempt.traceback:
        print_block(attempt.traceback, indent="  ")
    elif attempt.error:
        print_block(attempt.error, indent="  ")


def _print_steps(run: RunRecord, steps: list[StepRecord], view: ArgumentView) -> None:
    if steps:
        print_heading("steps")
    for step in steps:
        state = "done" if step.done else "begun" if step.kind == "step" else "waits"
        more = _step_end(run, step, view) if step.done else _awaited_text(step)
        began = utc_text(step.began_at)
        print_line(f"  {began} {state:5} {step.kind:6} {step.name}{more}")


def _step_end(run: RunRecord, step: StepRecord, view: ArgumentView) -> str:
    """Return how long a step took, and what it returned."""
    took = "" if step.ended_at is None else f" in {duration(step.ended_at - step.began_at)}"
    result = view.step_result_text(run, step)
    return f"{took}: {result}" if result else took


def _awaited_text(step: StepRecord) -> str:
    """Return what a step waits for, and until when."""
    until = "" if step.wake_at is None else f" until {utc_text(step.wake_at)}"
    match step.kind:
        case "wait":
            return f" for event {step.awaited or step.name!r}{until}"
        case "gather":
            return f" for runs {', '.join(json.loads(step.awaited or '[]'))}{until}"
        case _:
            return until


def _print_logs(logs: list[LogLine]) -> None:
    if logs:
        print_heading("logs")
    for line in logs:
        print_line(f"  {utc_text(line.at)} {line.level:7} {line.message}")


def _print_audit_entries(acts: list[AuditEntry]) -> None:
    if acts:
        print_heading("operator actions")
    for act in acts:
        why = f": {act.reason}" if act.reason else ""
        print_line(f"  {utc_text(act.at)} {act.actor} {display_action(act.act)}{why}")
