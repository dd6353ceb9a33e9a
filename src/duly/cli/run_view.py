"""One run in full, the same for `runs show` and `dead show`."""

import click

from duly.app import Duly
from duly.cli.arguments import ArgumentView
from duly.cli.documents import document, run_document, step_document
from duly.cli.output import print_block, print_json, print_line
from duly.cli.run_table import progress_of, run_note
from duly.cli.session import CommandSession
from duly.cli.tables import print_fields, print_heading
from duly.core.display import display_action
from duly.core.instants import iso, shown_instant
from duly.core.record import AttemptRecord, AuditEntry, LogLine, RunRecord, StepRecord
from duly.core.states import State
from duly.limits import LOG_LINES_PER_ATTEMPT, PAGE

show_args = click.option(
    "--show-args", is_flag=True, help="Show arguments even if duly cannot tell which are secret."
)


def print_run(app: Duly, session: CommandSession, run_id: str, *, show_args: bool) -> None:
    """Write a run: its record, attempts, steps, logs, and what operators did to it."""
    run = app.runs.get(run_id)
    view = ArgumentView(app, session, show=show_args)
    attempts = run.attempts()
    steps = run.steps()
    logs = run.logs(limit=LOG_LINES_PER_ATTEMPT)
    acts = app.store.list_audit_entries(run.id, PAGE)[::-1]
    if session.as_json:
        print_json(
            {
                "run": run_document(run.record, view),
                "attempts": [document(attempt) for attempt in attempts],
                "steps": [step_document(run.record, step, view) for step in steps],
                "logs": [document(line) for line in logs],
                "acts": [document(act) for act in acts],
            }
        )
        return
    now = app.store.now()
    print_fields(_fields(run.record, view, now))
    for attempt in attempts:
        _print_attempt(attempt)
    _print_steps(steps)
    _print_logs(logs)
    _print_audit_entries(acts)


def _fields(run: RunRecord, view: ArgumentView, now: int) -> list[tuple[str, str]]:
    return [
        ("run", run.id),
        ("task", run.task),
        ("state", run.state),
        ("note", run_note(run, now)),
        ("queue", run.queue),
        ("priority", str(run.priority)),
        ("key", run.key or ""),
        ("tags", run.tags or ""),
        ("call", view.full(run)),
        ("result", view.result_text(run) if run.state == State.SUCCEEDED else ""),
        ("progress", progress_of(run)),
        ("generation", str(run.generation)),
        ("attempt", _attempt_text(run)),
        ("claim", str(run.claim_number)),
        ("worker", run.worker_id or ""),
        ("made", shown_instant(run.created_at, now)),
        ("due", shown_instant(run.due_at, now)),
        ("expires", shown_instant(run.expires_at, now)),
        ("claimed", shown_instant(run.claimed_at, now)),
        ("finished", shown_instant(run.finished_at, now)),
        ("fingerprint", run.fingerprint or ""),
    ]


def _attempt_text(run: RunRecord) -> str:
    """Say which attempt it is at and why it is not the first."""
    why = []
    if run.retries_used:
        why.append(f"retries used: {run.retries_used}")
    if run.crashes:
        why.append(f"its worker died while running it, times: {run.crashes}")
    return f"{run.attempt} ({', '.join(why)})" if why else str(run.attempt)


_UNTIMED = frozenset({"lost", "stopped", "handed_back"})
"""Outcomes that another process recorded, which does not know when the body ended."""


def _print_attempt(attempt: AttemptRecord) -> None:
    took = ""
    if attempt.started_at is not None and attempt.outcome not in _UNTIMED:
        took = f" after {(attempt.finished_at - attempt.started_at) / 1e6:.3f} s"
    again = f", generation {attempt.generation}" if attempt.generation > 1 else ""
    print_heading(f"attempt {attempt.attempt}{again}: {attempt.outcome}{took}")
    if attempt.traceback:
        print_block(attempt.traceback, indent="  ")
    elif attempt.error:
        print_block(attempt.error, indent="  ")


def _print_steps(steps: list[StepRecord]) -> None:
    if steps:
        print_heading("steps")
    for step in steps:
        state = "done" if step.done else "begun" if step.kind == "step" else "waits"
        print_line(f"  {iso(step.began_at)} {state:5} {step.kind:6} {step.name}")


def _print_logs(logs: list[LogLine]) -> None:
    if logs:
        print_heading("logs")
    for line in logs:
        print_line(f"  {iso(line.at)} {line.level:7} {line.message}")


def _print_audit_entries(acts: list[AuditEntry]) -> None:
    if acts:
        print_heading("operator actions")
    for act in acts:
        why = f": {act.reason}" if act.reason else ""
        print_line(f"  {iso(act.at)} {act.actor} {display_action(act.act)}{why}")
