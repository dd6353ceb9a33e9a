"""`duly dead`: list, groups, retry, discard."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import click
from rich.progress import Progress as ProgressBar

from duly.api.dead import Bulk, Progress
from duly.api.runs import Filter
from duly.app import Duly
from duly.cli.arguments import ArgumentView
from duly.cli.documents import document
from duly.cli.failures import NotConfirmed
from duly.cli.filters import LIMIT, Filters, dead_filters, group_filters, page_options
from duly.cli.hints import similar
from duly.cli.listing import print_runs
from duly.cli.loading import app_of
from duly.cli.output import (
    Column,
    print_json,
    print_line,
    print_note,
    print_table,
    stderr_console,
)
from duly.cli.runs import show_args
from duly.cli.session import Session, pass_session, shared_options
from duly.cli.times import relative
from duly.core.states import DEAD
from duly.errors import RunNotFound
from duly.limits import PAGE

_GROUP_COLUMNS = (
    Column("COUNT", whole=True, right=True),
    Column("TASK"),
    Column("ERROR"),
    Column("LAST", from_width=80, whole=True),
    Column("FIRST", from_width=120, whole=True),
    Column("FINGERPRINT", from_width=60, whole=True),
    Column("SAMPLE", from_width=160, whole=True),
)


@click.group("dead")
@shared_options
def command() -> None:
    """Go through dead letters: runs that failed or were interrupted and wait for a person."""


@command.command("list")
@dead_filters
@page_options
@show_args
@shared_options
@pass_session
def list_dead(
    session: Session,
    /,
    *,
    limit: int,
    cursor: str | None,
    show_args: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """List dead letters, newest first."""
    app = app_of(session)
    given = Filters(**filters)
    which = given.resolve(app.store)
    page = app.dead.list(**which._asdict(), limit=limit, cursor=cursor)
    view = ArgumentView(app, session, show=show_args)
    none = "" if page else _none(app, given.task)
    print_runs(app, session, page, view, none=none)


@command.command("groups")
@group_filters
@LIMIT
@shared_options
@pass_session
def list_groups(session: Session, /, *, limit: int, **filters: Any) -> None:  # noqa: ANN401 - Filters
    """Group dead letters by task and error, the largest group first."""
    app = app_of(session)
    given = Filters(**filters)
    which = given.resolve(app.store)
    groups = app.dead.groups(task=which.task, queue=which.queue, since=which.since, limit=limit)
    if session.as_json:
        print_json({"groups": [document(group) for group in groups]})
    elif session.quiet:
        for group in groups:
            print_line(group.fingerprint)
    elif not groups:
        print_note(_none(app, given.task))
    else:
        now = app.store.now()
        rows = [
            (
                str(group.count),
                group.task,
                (group.error or "").partition("\n")[0],
                relative(group.last_at, now),
                relative(group.first_at, now),
                group.fingerprint,
                group.sample_id,
            )
            for group in groups
        ]
        print_table(_GROUP_COLUMNS, rows)


@command.command("retry")
@click.argument("run_ids", nargs=-1, metavar="[ID]...")
@dead_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters, without a filter.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="At most so many a second.")
@click.option("--dry-run", is_flag=True, help="Only say how many would be retried.")
@click.option("--reason", default="", help="Kept with each run.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
@pass_session
def retry_dead(
    session: Session,
    /,
    *,
    run_ids: tuple[str, ...],
    everything: bool,
    rate: float | None,
    dry_run: bool,
    reason: str,
    yes: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """Queue dead letters again, by id or by filter; each once, however many do this at a time."""
    app = app_of(session)
    chosen = Chosen(app, run_ids, Filters(**filters), everything=everything)

    def act(progress: Progress | None) -> Bulk:
        ids, which = chosen.ids, chosen.which
        return app.dead.retry(ids, which=which, rate=rate, reason=reason, progress=progress)

    _bulk(session, chosen, act, done="retried", verb="Retry", dry_run=dry_run, yes=yes)


@command.command("discard")
@click.argument("run_ids", nargs=-1, metavar="[ID]...")
@dead_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters, without a filter.")
@click.option("--dry-run", is_flag=True, help="Only say how many would be discarded.")
@click.option("--reason", default="", help="Kept with each run; needed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared_options
@pass_session
def discard_dead(
    session: Session,
    /,
    *,
    run_ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    reason: str,
    yes: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """End dead letters as cancelled, by id or by filter, with a reason."""
    if not reason and not dry_run:
        message = "discarding needs a --reason; it is kept with each run"
        raise click.UsageError(message)
    app = app_of(session)
    chosen = Chosen(app, run_ids, Filters(**filters), everything=everything)

    def act(progress: Progress | None) -> Bulk:
        ids, which = chosen.ids, chosen.which
        return app.dead.discard(ids, which=which, reason=reason, progress=progress)

    _bulk(session, chosen, act, done="discarded", verb="Discard", dry_run=dry_run, yes=yes)


class Chosen:
    """The dead letters an act is about, by id or by filter; one of `ids` and `which` is None."""

    def __init__(
        self, app: Duly, run_ids: tuple[str, ...], filters: Filters, *, everything: bool
    ) -> None:
        if run_ids and (everything or not filters.is_empty):
            message = "name dead letters either by id or by filter"
            raise click.UsageError(message)
        if everything and not filters.is_empty:
            message = "--all takes no filter"
            raise click.UsageError(message)
        if not run_ids and not everything and filters.is_empty:
            message = "name dead letters by id or by a filter, or give --all"
            raise click.UsageError(message)
        self._app = app
        self._task = filters.task
        self.ids = list(dict.fromkeys(run_ids)) or None
        self.which: Filter | None = None if run_ids else filters.resolve(app.store)

    def check(self) -> None:
        """Refuse an unknown id before anything is done."""
        states = self._states()
        for run_id in self.ids or ():
            if run_id not in states:
                raise RunNotFound(run_id)

    def count(self) -> int:
        """Return how many there are now."""
        if self.which is not None:
            return self._app.dead.count(self.which)
        return sum(state in DEAD for state in self._states().values())

    def none(self) -> str:
        """Say that there are none, and which task may have been meant."""
        return _none(self._app, self._task)

    def _states(self) -> dict[str, str]:
        return self._app.store.get_states(self.ids) if self.ids else {}


def _bulk(
    session: Session,
    chosen: Chosen,
    act: Callable[[Progress | None], Bulk],
    *,
    done: str,
    verb: str,
    dry_run: bool,
    yes: bool,
) -> None:
    chosen.check()
    if dry_run:
        _print_dry_run(session, chosen, done)
        return
    if not yes:
        _confirm(session, verb, chosen.count())
    with ExitStack() as stack:
        result = act(_progress_bar(session, stack, verb, chosen))
    if session.as_json:
        print_json({done: result.done, "skipped": result.skipped, "dry_run": False})
    elif not session.quiet:
        print_line(f"{done} {result.done:,}, skipped {result.skipped:,}")
        if sum(result) == 0:
            print_note(chosen.none())


def _confirm(session: Session, verb: str, matching: int) -> None:
    if session.as_json:
        message = "who asks for JSON cannot be asked back; add --yes"
        raise click.UsageError(message)
    if matching == 0:
        return
    letters = "dead letter" if matching == 1 else "dead letters"
    try:
        confirmed = click.confirm(f"{verb} {matching:,} {letters}?", err=True)
    except click.Abort:
        click.echo(err=True)
        confirmed = False
    if not confirmed:
        message = "nothing was done; say yes, or add --yes to go on without being asked"
        raise NotConfirmed(message)


def _print_dry_run(session: Session, chosen: Chosen, done: str) -> None:
    matching = chosen.count()
    if session.as_json:
        print_json({done: 0, "skipped": 0, "dry_run": True, "matching": matching})
        return
    print_line(f"{matching:,} would be {done}")
    if matching == 0 and not session.quiet:
        print_note(chosen.none())


def _none(app: Duly, task: str | None) -> str:
    meant = []
    if task is not None:
        meant = similar(task, (group.task for group in app.dead.groups(limit=PAGE)))
    hint = f" --task takes a full name: there are dead letters of {', '.join(meant)}."
    return "No dead letter matches." + (hint if meant else "")


def _progress_bar(session: Session, stack: ExitStack, verb: str, chosen: Chosen) -> Progress | None:
    console = None if session.as_json or session.quiet else stderr_console()
    if console is None:
        return None
    bar = stack.enter_context(ProgressBar(console=console, transient=True))
    task = bar.add_task(verb, total=chosen.count())

    def show(result: Bulk) -> None:
        bar.update(task, completed=sum(result))

    return show
