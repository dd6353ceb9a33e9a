"""`duly schedules`: list, show, next, firings, pause, resume, run, remove, backfill."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from duly.api.json_forms import FIRING, json_instant, schedule_document
from duly.api.schedule_views import FiringView, ScheduleView
from duly.api.schedules import Schedules
from duly.cli.applications import app_of
from duly.cli.arguments import ArgumentView
from duly.cli.list_group import ListGroup
from duly.cli.option_types import utc_instant
from duly.cli.output import print_json, print_line, print_note
from duly.cli.run_view import show_args
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_fields, print_heading, print_table
from duly.core.amounts import amount
from duly.core.instants import microseconds_of
from duly.core.time_text import relative

_COLUMNS = (
    Column("SCHEDULE"),
    Column("STATE", whole=True),
    Column("NEXT", whole=True),
    Column("WHEN"),
    Column("ZONE", from_width=110),
    Column("TASK", from_width=100),
)
_FIRING_COLUMNS = (
    Column("INSTANT", whole=True),
    Column("OUTCOME", whole=True),
    Column("STATE", whole=True),
    Column("REASON"),
    Column("RUN", whole=True),
)
_UPCOMING = 5
_RECENT = 10

_reason = click.option("--reason", default="", help="Reason, recorded in the audit log.")
_name = click.argument("name")
_DATE = "2030-01-31, or 2030-01-31T08:00, in UTC unless it has a zone"


@click.group("schedules", cls=ListGroup)
@shared_options
def command() -> None:
    """List, show, pause and run schedules."""


@command.command("list")
@click.option("--removed", is_flag=True, help="Include removed schedules.")
@shared_options
@pass_session
def list_schedules(session: CommandSession, /, *, removed: bool) -> None:
    """List schedules by name."""
    app = app_of(session)
    schedules = app.schedules.list(removed=removed)
    if session.as_json:
        view = ArgumentView(app, session, show=False)
        print_json(
            {"schedules": [schedule_document(schedule, view.calls) for schedule in schedules]}
        )
    elif session.quiet:
        for schedule in schedules:
            print_line(schedule.name)
    elif not schedules:
        print_note(
            f"There is no schedule in {app.store.shown_url}; schedules in code appear after a "
            "worker has started."
        )
    else:
        now = app.store.now()
        print_table(_COLUMNS, [_row(schedule, now) for schedule in schedules])


@command.command("show")
@_name
@show_args
@shared_options
@pass_session
def show_schedule(session: CommandSession, /, *, name: str, show_args: bool) -> None:
    """Show a schedule: its task, when it fires, and its last firings."""
    app = app_of(session)
    view = ArgumentView(app, session, show=show_args)
    schedule = app.schedules.get(name)
    upcoming = app.schedules.next(name, _UPCOMING)
    recent = app.schedules.firings(name, limit=_RECENT)
    if session.as_json:
        print_json(
            {
                "schedule": schedule_document(schedule, view.calls),
                "next": [json_instant(at) for at in upcoming],
                "firings": [FIRING.document(firing) for firing in recent],
            }
        )
        return
    unknown = "" if schedule.is_registered else "no live worker knows its task, so its runs wait"
    print_fields(
        [
            ("schedule", schedule.name),
            ("state", schedule.state),
            ("reason", schedule.reason or ""),
            ("when", schedule.when),
            ("cron", schedule.cron or ""),
            ("time zone", schedule.tz),
            ("task", schedule.task),
            ("", unknown),
            ("call", view.full(schedule)),
            ("misfire", schedule.misfire),
            ("overlap", schedule.overlap),
            ("waiting", str(schedule.waiting) if schedule.waiting else ""),
            ("defined", f"{schedule.source}, {schedule.place}"),
            ("version", str(schedule.version)),
        ]
    )
    if upcoming:
        print_heading("Next, if resumed by then" if schedule.state == "paused" else "Next")
        _print_upcoming(upcoming)
    if recent:
        print_heading("Last")
        print_table(_FIRING_COLUMNS, [_firing_row(firing) for firing in recent])


@command.command("next")
@_name
@click.option("-n", "count", type=click.IntRange(1, 1000), default=_UPCOMING, show_default=True)
@shared_options
@pass_session
def next_instants(session: CommandSession, /, *, name: str, count: int) -> None:
    """Show when a schedule is due next, in UTC and in its own time zone."""
    app = app_of(session)
    upcoming = app.schedules.next(name, count)
    if session.as_json:
        print_json({"next": [json_instant(at) for at in upcoming]})
    elif not upcoming:
        print_note("The schedule will not fire again.")
    else:
        _print_upcoming(upcoming)
        if app.schedules.get(name).state == "paused" and not session.quiet:
            print_note("The schedule is paused: instants before it is resumed are skipped.")


@command.command("firings")
@_name
@click.option("-n", "limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@shared_options
@pass_session
def list_firings(session: CommandSession, /, *, name: str, limit: int) -> None:
    """List the firings of a schedule, newest first."""
    app = app_of(session)
    app.schedules.get(name)
    firings = app.schedules.firings(name, limit=limit)
    if session.as_json:
        print_json({"firings": [FIRING.document(firing) for firing in firings]})
    elif session.quiet:
        for firing in firings:
            print_line(json_instant(firing.instant))
    elif not firings:
        print_note("The schedule has not come due yet.")
    else:
        print_table(_FIRING_COLUMNS, [_firing_row(firing) for firing in firings])


def _add_action_command(act: Callable[..., None], state: str, text: str) -> None:
    """Add a command that performs one action on a schedule and prints the resulting state."""

    @command.command(act.__name__, help=text)
    @_name
    @_reason
    @shared_options
    @pass_session
    def change(session: CommandSession, /, *, name: str, reason: str) -> None:
        act(app_of(session).schedules, name, reason=reason)
        if session.as_json:
            print_json({"name": name, "state": state})
        elif not session.quiet:
            print_line(f"Schedule {name} is {state}.")


_add_action_command(
    Schedules.pause,
    "paused",
    "Skip due instants until the schedule is resumed; deploys do not end a pause.",
)
_add_action_command(Schedules.resume, "active", "Let a schedule fire again.")
_add_action_command(
    Schedules.remove,
    "removed",
    "End a schedule; its firings stay on record.",
)


@command.command("run")
@_name
@_reason
@shared_options
@pass_session
def run_schedule(session: CommandSession, /, *, name: str, reason: str) -> None:
    """Fire a schedule now, in any state, in addition to its due instants."""
    run = app_of(session).schedules.run_now(name, reason=reason)
    if session.as_json:
        print_json({"run_id": run.id})
    else:
        print_line(run.id)


@command.command("backfill")
@_name
@click.option(
    "--from", "start", type=utc_instant, required=True, help=f"The first instant: {_DATE}."
)
@click.option("--to", "end", type=utc_instant, required=True, help="The last instant, exclusive.")
@_reason
@shared_options
@pass_session
def backfill_schedule(
    session: CommandSession, /, *, name: str, start: datetime, end: datetime, reason: str
) -> None:
    """Run the due instants of a period that have not run yet, including skipped ones."""
    app = app_of(session)
    runs = app.schedules.backfill(name, start, end, reason=reason)
    if session.as_json:
        print_json({"run_ids": [run.id for run in runs]})
    else:
        for run in runs:
            print_line(run.id)
        if not session.quiet:
            print_note(f"{amount(len(runs), 'run')} enqueued.")


def _print_upcoming(upcoming: Any) -> None:  # noqa: ANN401 - a sequence of datetimes
    for at in upcoming:
        local = f"{at:%Y-%m-%d %H:%M:%S} {at.tzname()}"
        utc = f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        print_line(utc if at.tzinfo is UTC else f"{utc}   {local}")


def _row(schedule: ScheduleView, now: int) -> tuple[str, ...]:
    return (
        schedule.name,
        schedule.state if schedule.is_registered else f"{schedule.state}, task unknown",
        "paused" if schedule.state == "paused" else relative(_micros(schedule.next_at), now),
        schedule.when,
        schedule.tz,
        schedule.task,
    )


def _firing_row(firing: FiringView) -> tuple[str, ...]:
    instant = f"{firing.instant:%Y-%m-%d %H:%M:%S} UTC"
    if firing.instants > 1:
        instant += f" and {firing.instants - 1} more"
    # A pruned run has ended, but its final state is no longer known.
    state = firing.run_state or ("pruned" if firing.run_id else "")
    return instant, firing.outcome, state, firing.reason or "", firing.run_id or ""


def _micros(at: datetime | None) -> int | None:
    return None if at is None else microseconds_of(at)
