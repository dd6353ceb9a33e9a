"""`duly db`: migrate, status, sql, check, prune, backup."""

from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import click

from duly.actor import resolve_actor
from duly.api.prune import prune as prune_now
from duly.cli.applications import app_of, celery_guard, load_app
from duly.cli.failures import FAILURE
from duly.cli.option_types import duration
from duly.cli.output import print_json, print_line, print_note
from duly.cli.progress import bar
from duly.cli.prompt import confirm_by_name, yes_option
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import print_fields
from duly.cli.urls import missing_file, package_of
from duly.clock import MICROSECONDS
from duly.core.amounts import FOREVER, amount, bounded_microseconds
from duly.core.instants import iso
from duly.core.time_text import coarse_duration
from duly.limits import TICK_BATCH
from duly.settings import store_url
from duly.store import migrator
from duly.store.migrator import OLDEST_CODE
from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.upkeep import Prune
from duly.store.schema import Schema, SchemaMigration
from duly.store.store_factory import open_store

_EMPTY = Schema(0, 0)

_VERSIONS = """\
-- Stores know by this table which migrations have run.
CREATE TABLE IF NOT EXISTS duly_schema
    (version INTEGER NOT NULL, oldest_code INTEGER NOT NULL, name TEXT NOT NULL);"""


class SchemaFinding(NamedTuple):
    """Whether the tables fit this code, and what to do."""

    name: str
    advice: str


@click.group("db")
@shared_options
def command() -> None:
    """Set up, upgrade, check, prune and back up the database."""


@command.command("migrate")
@shared_options
@pass_session
def migrate(session: CommandSession) -> None:
    """Run the missing migrations."""
    url = url_of(session)
    package = package_of(url)
    with closing(open_store(url, migrate=False)) as store:
        ran = migrator.migrate(store, package)
        migrator.ensure(store, package, store.shown_url)
        version = store.read_schema().version
        shown_url = store.shown_url
    if session.as_json:
        print_json({"store": shown_url, "migrations": ran, "schema_version": version})
    elif not session.quiet:
        for name in ran:
            print_line(f"ran {name}")
        print_line(f"{shown_url} has schema version {version}.")


@command.command("status")
@shared_options
@pass_session
def status(session: CommandSession) -> None:
    """Check that the tables fit this code; ends with status 1 if action is needed."""
    url = url_of(session)
    needed = migrator.newest(package_of(url))
    missing = missing_file(url)
    if missing is not None:
        shown_url, schema = str(missing), _EMPTY
    else:
        with closing(open_store(url, migrate=False)) as store:
            shown_url, schema = store.shown_url, store.read_schema()
    finding = schema_finding(schema, needed)
    if session.as_json:
        print_json(
            {
                "store": shown_url,
                "schema_version": schema.version,
                "needed_version": needed,
                "oldest_code": schema.oldest_code,
                "status": finding.name,
                "advice": finding.advice,
            }
        )
    elif not session.quiet:
        print_fields(
            [
                ("store", shown_url),
                ("schema version", str(schema.version)),
                ("needed version", str(needed)),
                ("status", finding.name),
                ("", finding.advice),
            ]
        )
    if finding.name != "ok":
        raise click.exceptions.Exit(FAILURE)


@command.command("sql")
@click.option(
    "--after", type=click.IntRange(0), default=0, help="Only migrations after this version."
)
@shared_options
@pass_session
def sql(session: CommandSession, /, *, after: int) -> None:
    """Print the migrations as SQL for the database in the URL, without connecting."""
    package = package_of(url_of(session))
    steps = [step for step in migrator.migrations(package) if step.version > after]
    if after == 0:  # An empty database has no tables in use.
        steps = [step.for_one_transaction() for step in steps]
    if session.as_json:
        print_json({"migrations": [step._asdict() for step in steps]})
    elif steps:
        click.echo("\n\n".join([_VERSIONS, *map(_script, steps)]))
    else:
        print_note(f"There is no migration after version {after}.")


@command.command("check")
@shared_options
@pass_session
def check(session: CommandSession) -> None:
    """Check the files and indexes of the database; ends with status 1 if something is broken."""
    store = app_of(session).store
    with bar(session, "Checking"):
        findings = store.check_integrity()
    is_broken = any(finding.level == "error" for finding in findings)
    if session.as_json:
        found = [finding._asdict() for finding in findings]
        print_json({"ok": not is_broken, "store": store.shown_url, "findings": found})
    elif not session.quiet or is_broken:
        for finding in findings:
            print_line(f"{finding.level}: {finding.text}")
            if finding.remedy:
                print_line(finding.remedy)
    if is_broken:
        raise click.exceptions.Exit(FAILURE)


@command.command("prune")
@click.option(
    "--older-than", type=duration, help="Finished runs that ended longer ago than this: 7d."
)
@click.option("--dead-older-than", type=duration, help="Dead letters older than this: 30d.")
@click.option("--reason", default="", help="Reason, recorded in the audit log.")
@yes_option
@shared_options
@pass_session
def prune(
    session: CommandSession,
    /,
    *,
    older_than: timedelta | None,
    dead_older_than: timedelta | None,
    reason: str,
    yes: bool,
) -> None:
    """Delete finished runs now, in bounded batches; workers also do this regularly.

    Runs whose task sets a longer retention, or whose key is still in force, stay until then.
    """
    app = app_of(session)
    ended = _retention_seconds(older_than, app.settings.retention)
    died = _retention_seconds(dead_older_than, app.settings.dead_retention)
    if not yes:
        confirm_by_name(session, f"Delete finished runs from {app.store.shown_url}.", "prune")
    op = Prune(
        older_than=bounded_microseconds(ended),
        dead_older_than=bounded_microseconds(died),
        acts_older_than=bounded_microseconds(app.settings.act_retention),
        limit=TICK_BATCH,
    )
    said = f"history older than {_shown(ended)}, dead letters older than {_shown(died)}"
    total = prune_now(
        app.store, op, act=RecordAuditEntry(resolve_actor(None), "prune", said, reason)
    )
    if session.as_json:
        print_json({"pruned": total})
    elif not session.quiet:
        print_line(f"Deleted {amount(total, 'finished run')}.")


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path))
@shared_options
@pass_session
def backup(session: CommandSession, /, *, file: Path) -> None:
    """Write a copy of the database at one moment to FILE; workers can keep running.

    Use PostgreSQL's own tools to back up PostgreSQL. After you restore a backup, and before workers
    start, run `duly restore`, which interrupts runs that may have run since.
    """
    store = app_of(session).store
    with bar(session, "Copying"):
        store.back_up(file.absolute())
    # Taken after the copy, so that everything in it was written before this time.
    made_at = iso(store.now())
    if session.as_json:
        print_json({"file": str(file.absolute()), "made_at": made_at})
    elif not session.quiet:
        print_line(f"{file.absolute()} is {store.shown_url} as of {made_at}.")
        print_line(f"After you restore this backup: duly restore --since {made_at}")


def _retention_seconds(given: timedelta | None, usual: float) -> float:
    """Return the retention in seconds."""
    return usual if given is None else given.total_seconds()


def _shown(seconds: float) -> str:
    return "forever" if seconds == FOREVER else coarse_duration(round(seconds) * MICROSECONDS)


def schema_finding(schema: Schema, needed: int) -> SchemaFinding:
    """Return whether tables of one version fit code of another."""
    if schema.version == 0:
        advice = "There are no tables yet; the first use creates them, or `duly db migrate`."
        return SchemaFinding("empty", advice)
    if schema.version < needed:
        return SchemaFinding("migration needed", "Run `duly db migrate` once, then start again.")
    if schema.oldest_code > needed:
        return SchemaFinding("code too old", "A newer duly made these tables; upgrade duly here.")
    if schema.version > needed:
        return SchemaFinding(
            "ok", "A newer duly made these tables, and this version can continue to use them."
        )
    return SchemaFinding("ok", "")


def _script(step: SchemaMigration) -> str:
    """Return a migration's SQL with the row that records it."""
    row = f"({step.version}, {OLDEST_CODE}, '{step.name}')"
    return f"-- {step.name}\n{step.sql.strip()}\nINSERT INTO duly_schema VALUES {row};"


def url_of(session: CommandSession) -> str:
    """Return the address of the database without opening it."""
    if session.url is None and session.app_reference is not None:
        guard = celery_guard(session)
        return load_app(session.app_reference).url if guard is None else guard.url
    return store_url(session.url)
