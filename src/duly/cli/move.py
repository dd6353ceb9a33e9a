"""`duly move`: copies an SQLite file to PostgreSQL, with ids, keys, schedules and history."""

from contextlib import closing
from importlib import import_module
from typing import Any

import click

from duly.cli.failures import FAILURE
from duly.cli.output import print_json, print_line, print_note
from duly.cli.progress import bar
from duly.cli.prompt import confirm, yes_option
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.urls import masked, missing_file, package_of
from duly.core.addresses import without_driver
from duly.core.amounts import amount
from duly.core.audit import AuditFinding
from duly.errors import StoreRefused
from duly.limits import PAGE
from duly.store.store_factory import open_store


@click.command("move")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@yes_option
@shared_options
@pass_session
def command(session: CommandSession, /, *, source: str, target: str, yes: bool) -> None:
    """Copy everything from FROM (sqlite:///…) into TO (postgresql://…), which must be empty.

    All workers must have stopped. The copy locks the file against writes, and copies everything or
    nothing. Afterwards the file accepts nothing new. Then both sides are audited; the status is 1
    if the audit found a problem.
    """
    source, target = without_driver(source), without_driver(target)
    _check(source, target)
    if not yes:
        confirm(session, f"Copy {masked(source)} into {masked(target)}?")
    counts = _move(source, target, session)
    flaws = {masked(url): _audit(url, session) for url in (source, target)}
    is_wrong = any(flaws.values())
    if session.as_json:
        found = {url: [flaw._asdict() for flaw in of_url] for url, of_url in flaws.items()}
        print_json({"ok": not is_wrong, "moved": counts, "flaws": found})
    else:
        for url, of_url in flaws.items():
            for flaw in of_url:
                print_line(f"{url}: {flaw.subject} {flaw.text} ({flaw.check}).")
        if not session.quiet:
            runs = sum(counts[f"duly_{name}"] for name in ("runs", "waiting", "history"))
            print_line(f"Copied {amount(runs, 'run')} to {masked(target)}.")
            print_line(
                "Now set this address in the application (DULY_URL) and start its workers; the "
                "file accepts nothing any more."
            )
    if is_wrong:
        raise click.exceptions.Exit(FAILURE)


def _check(source: str, target: str) -> None:
    if package_of(source) != "duly.store.sqlite" or package_of(target) != "duly.store.postgres":
        raise click.UsageError("a store can only be moved from sqlite:///… to postgresql://…")
    missing = missing_file(source)
    if missing is not None:
        raise StoreRefused(f"there is no database at {missing}")


def _move(source: str, target: str, session: CommandSession) -> dict[str, int]:
    # By name, since only the packages of the stores may import the drivers.
    reading: Any = import_module("duly.store.sqlite.transfer").reading
    with (
        closing(open_store(source)) as old,
        closing(open_store(target)) as new,
        reading(old) as everything,
    ):
        write: Any = import_module("duly.store.postgres.transfer").write
        with bar(session, "Copying", total=everything.row_count()) as show:
            counts: dict[str, int] = write(new.url, everything, show)
        # Everything has been copied. Writes to the file from now on would be lost.
        everything.close_for_good(masked(target))
    if session.verbose and not session.as_json:
        for table, count in counts.items():
            print_note(f"{table}: {count:,}")
    return counts


def _audit(url: str, session: CommandSession) -> list[AuditFinding]:
    with closing(open_store(url)) as store, bar(session, f"Auditing {store.shown_url}"):
        return list(store.audit(limit=PAGE))
