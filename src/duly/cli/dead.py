"""`duly dead`: list, export, groups, show, retry, discard."""

import json
from collections.abc import Callable
from operator import itemgetter
from typing import Any, NamedTuple

import click

from duly.api.bulk_writes import BulkResult
from duly.api.json_forms import DEAD_LETTER_GROUP, dead_letter_document, run_document
from duly.cli.arguments import ArgumentView
from duly.cli.dead_letters import DeadLetterSource, dead_letters_of, letter_calls
from duly.cli.engine_dead_letters import print_dead_letter, print_dead_letters, print_unsent
from duly.cli.failures import FAILURE
from duly.cli.filters import LIMIT, Filters, dead_filters, group_filters, page_options
from duly.cli.list_group import ListGroup
from duly.cli.output import print_json, print_line, print_note
from duly.cli.progress import bar, is_interactive
from duly.cli.prompt import confirm
from duly.cli.run_table import print_cursor, print_run_table
from duly.cli.run_view import print_run, show_args
from duly.cli.selection import DeadLetterSelection
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_table
from duly.core.amounts import check_rate
from duly.core.record import DeadLetterGroup, RunRecord
from duly.core.time_text import relative
from duly.errors import LetterNotFound
from duly.guard.dead_letters import DeadLetterResult, Progress
from duly.limits import PAGE
from duly.store.ops.guard import DeadLetterRecord

_GROUP_COLUMNS = (
    Column("COUNT", whole=True, right=True),
    Column("TASK"),
    Column("ERROR"),
    Column("LAST", from_width=80, whole=True),
    Column("FIRST", from_width=120, whole=True),
    Column("FINGERPRINT", from_width=60, whole=True),
    Column("ENGINE", from_width=100, whole=True),
    Column("SAMPLE", from_width=160, whole=True),
)


@click.group("dead", cls=ListGroup)
@shared_options
def command() -> None:
    """List, show, retry and discard dead letters.

    Dead letters are runs that failed or were interrupted, and messages of other engines, such as
    Celery, that failed for good.
    """


@command.command("list")
@dead_filters
@page_options
@show_args
@shared_options
@pass_session
def list_dead(
    session: CommandSession,
    /,
    *,
    limit: int,
    cursor: str | None,
    show_args: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """List dead letters, newest first, including those of other engines such as Celery."""
    given = Filters(**filters)
    given.check()
    source = dead_letters_of(session)
    page = _page(source, given, limit, cursor)
    if session.as_json:
        print_json(_page_document(source, session, page, show_args=show_args))
    elif session.quiet:
        for each in page.ids:
            print_line(each)
    elif not (page.runs or page.letters):
        print_note(source.no_match(given.task))
    else:
        _print_page(source, session, page, show_args=show_args)


@command.command("show")
@click.argument("letter_id", metavar="ID")
@show_args
@shared_options
@pass_session
def show_dead(session: CommandSession, /, *, letter_id: str, show_args: bool) -> None:
    """Show one dead letter: a run as `duly runs show` does, or a message of another engine."""
    source = dead_letters_of(session)
    letter = source.find(letter_id)
    if letter is None:
        if source.app is None or not source.app.store.get_states([letter_id]):
            raise LetterNotFound(letter_id)
        print_run(source.app, session, letter_id, show_args=show_args)
    elif session.as_json:
        print_json({"letter": dead_letter_document(letter, letter_calls(show_args=show_args))})
    else:
        print_dead_letter(letter, source.clock.now(), show_args=show_args)


@command.command("export")
@dead_filters
@show_args
@shared_options
@pass_session
def export_dead(
    session: CommandSession,
    /,
    *,
    show_args: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """Write dead letters as JSON, one document per line, newest first."""
    given = Filters(**filters)
    given.check()
    source = dead_letters_of(session)
    cursor = None
    while True:
        page = _page(source, given, PAGE, cursor)
        found = _page_document(source, session, page, show_args=show_args)
        for each in sorted(found["runs"] + found["letters"], key=itemgetter("id"), reverse=True):
            click.echo(json.dumps(each))
        cursor = page.cursor
        if cursor is None:
            return


@command.command("groups")
@group_filters
@LIMIT
@shared_options
@pass_session
def list_groups(session: CommandSession, /, *, limit: int, **filters: Any) -> None:  # noqa: ANN401 - Filters
    """Group dead letters by task and error, the largest group first."""
    given = Filters(**filters)
    given.check()
    source = dead_letters_of(session)
    groups = _groups(source, given, limit)
    if session.as_json:
        print_json({"groups": [DEAD_LETTER_GROUP.document(group) for group in groups]})
    elif session.quiet:
        for group in groups:
            print_line(group.fingerprint)
    elif not groups:
        print_note(source.no_match(given.task))
    else:
        now = source.clock.now()
        rows = [
            (
                str(group.count),
                group.task,
                (group.error or "").partition("\n")[0],
                relative(group.last_at, now),
                relative(group.first_at, now),
                group.fingerprint,
                group.engine or "",
                group.sample_id,
            )
            for group in groups
        ]
        print_table(_GROUP_COLUMNS, rows)


@command.command("retry")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@dead_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters, without a filter.")
@click.option("--rate", type=float, help="Retry at most this many per second.")
@click.option("--dry-run", is_flag=True, help="Only show how many would be retried.")
@click.option("--reason", default="", help="Reason, recorded with each dead letter.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@shared_options
@pass_session
def retry_dead(
    session: CommandSession,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    rate: float | None,
    dry_run: bool,
    reason: str,
    yes: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """Retry dead letters, by id or by filter.

    Each is retried once, even if several commands select it at the same time.

    To retry the dead letters of another engine, name its application: --app proj.celery:app.
    """
    check_rate(rate)
    chosen = DeadLetterSelection(
        session, ids, Filters(**filters), everything=everything, replay=True
    )
    refused: list[str] = []

    def act(progress: Progress) -> DeadLetterResult:
        app, run_ids, which = chosen.app, chosen.run_ids, chosen.which
        runs, show = BulkResult(0, 0), _run_progress(progress)
        if app is not None:
            runs = app.dead.retry(run_ids, which=which, rate=rate, reason=reason, progress=show)
            refused.extend(runs.refused)
        behind = _after_runs(runs, progress)
        return _total(runs, chosen.engine_letters.retry(rate=rate, reason=reason, progress=behind))

    _bulk(session, chosen, act, done="retried", verb="Retry", dry_run=dry_run, yes=yes)
    if refused:
        for why in refused:
            print_note(f"Left: {why}")
        click.get_current_context().exit(FAILURE)


@command.command("discard")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@dead_filters
@click.option("--all", "everything", is_flag=True, help="All dead letters, without a filter.")
@click.option("--dry-run", is_flag=True, help="Only show how many would be discarded.")
@click.option("--reason", default="", help="Reason, recorded with each dead letter; required.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@shared_options
@pass_session
def discard_dead(
    session: CommandSession,
    /,
    *,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    reason: str,
    yes: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """Discard dead letters by id or by filter, with a reason; runs become cancelled."""
    if not reason and not dry_run:
        message = "discarding needs a --reason, which is recorded with each dead letter"
        raise click.UsageError(message)
    chosen = DeadLetterSelection(
        session, ids, Filters(**filters), everything=everything, replay=False
    )

    def act(progress: Progress) -> DeadLetterResult:
        app, run_ids, which = chosen.app, chosen.run_ids, chosen.which
        runs, show = BulkResult(0, 0), _run_progress(progress)
        if app is not None:
            runs = app.dead.discard(run_ids, which=which, reason=reason, progress=show)
        behind = _after_runs(runs, progress)
        return _total(runs, chosen.engine_letters.discard(reason=reason, progress=behind))

    _bulk(session, chosen, act, done="discarded", verb="Discard", dry_run=dry_run, yes=yes)


def _bulk(
    session: CommandSession,
    chosen: DeadLetterSelection,
    act: Callable[[Progress], DeadLetterResult],
    *,
    done: str,
    verb: str,
    dry_run: bool,
    yes: bool,
) -> None:
    if dry_run:
        _print_dry_run(session, chosen, done)
        return
    if not yes:
        _confirm(session, verb, chosen.count())
    total = chosen.count() if is_interactive(session) else None
    with bar(session, verb, total=total) as progress:
        result = act(progress)
    if session.as_json:
        counts = {done: result.done, "skipped": result.skipped, "left": len(result.unsent)}
        print_json(counts | {"dry_run": False})
    elif not session.quiet:
        left = f", not retried {len(result.unsent):,}" if result.unsent else ""
        print_line(f"{done} {result.done:,}, skipped {result.skipped:,}{left}")
        print_unsent(result)
        chosen.print_skipped()
        if result == (0, 0, ()):
            print_note(chosen.no_match())
    if any(not each.elsewhere for each in result.unsent):
        click.get_current_context().exit(FAILURE)


def _confirm(session: CommandSession, verb: str, matching: int) -> None:
    if matching or session.as_json:
        letters = "dead letter" if matching == 1 else "dead letters"
        confirm(session, f"{verb} {matching:,} {letters}?")


def _print_dry_run(session: CommandSession, chosen: DeadLetterSelection, done: str) -> None:
    matching = chosen.count()
    if session.as_json:
        print_json({done: 0, "skipped": 0, "dry_run": True, "matching": matching})
        return
    print_line(f"{matching:,} would be {done}")
    if not session.quiet:
        chosen.print_skipped()
    if matching == 0 and not session.quiet:
        print_note(chosen.no_match())


def _run_progress(progress: Progress) -> Callable[[BulkResult], None]:
    return lambda runs: progress(runs.done + runs.skipped)


def _after_runs(runs: BulkResult, progress: Progress) -> Progress:
    return lambda letters: progress(runs.done + runs.skipped + letters)


def _total(runs: BulkResult, letters: DeadLetterResult) -> DeadLetterResult:
    return DeadLetterResult(
        runs.done + letters.done, runs.skipped + letters.skipped, letters.unsent
    )


def _groups(source: DeadLetterSource, given: Filters, limit: int) -> list[DeadLetterGroup]:
    found: list[DeadLetterGroup] = []
    if source.app is not None and given.engine is None:
        which = given.resolve(source.clock)
        found += source.app.dead.groups(
            task=which.task, queue=which.queue, since=which.since, limit=limit
        )
    letters = given.engine_letters(source.clock)
    if letters is not None:
        found += source.engine_letters.groups(letters._replace(limit=limit))
    return sorted(found, key=lambda group: (-group.count, group.task))[:limit]


class _DeadLetterPage(NamedTuple):
    """The newest runs and engine dead letters. Ids grow with time, so one cursor continues both."""

    runs: list[RunRecord]
    letters: list[DeadLetterRecord]
    cursor: str | None = None

    @property
    def ids(self) -> list[str]:
        """The ids of the runs, then those of the engine dead letters."""
        return [*(run.id for run in self.runs), *(letter.id for letter in self.letters)]


def _page(
    source: DeadLetterSource, given: Filters, limit: int, cursor: str | None
) -> _DeadLetterPage:
    which = given.resolve(source.clock)
    before = which.resolve(limit=limit, cursor=cursor).before
    runs: list[RunRecord] = []
    if source.app is not None and given.engine is None:
        found = source.app.dead.list(**which._asdict(), limit=limit, cursor=cursor)
        runs = [run.record for run in found]
    letters: list[DeadLetterRecord] = []
    which_letters = given.engine_letters(source.clock)
    if which_letters is not None:
        letters = list(
            source.engine_letters.page(which_letters._replace(before=before, limit=limit))
        )
    both = _DeadLetterPage(runs, letters)
    if len(both.ids) < limit:
        return both
    last = sorted(both.ids, reverse=True)[limit - 1]
    return _DeadLetterPage(
        [run for run in runs if run.id >= last],
        [letter for letter in letters if letter.id >= last],
        last,
    )


def _page_document(
    source: DeadLetterSource, session: CommandSession, page: _DeadLetterPage, *, show_args: bool
) -> dict[str, Any]:
    runs = []
    if source.app is not None:
        view = ArgumentView(source.app, session, show=show_args)
        runs = [run_document(run, view.calls) for run in page.runs]
    calls = letter_calls(show_args=show_args)
    letters = [dead_letter_document(letter, calls) for letter in page.letters]
    return {"runs": runs, "letters": letters, "cursor": page.cursor}


def _print_page(
    source: DeadLetterSource, session: CommandSession, page: _DeadLetterPage, *, show_args: bool
) -> None:
    now = source.clock.now()
    if page.runs and source.app is not None:
        print_run_table(page.runs, ArgumentView(source.app, session, show=show_args), now)
    if page.runs and page.letters:
        print_line("")
    if page.letters:
        print_dead_letters(page.letters, now, show_args=show_args)
    print_cursor(page.cursor)
