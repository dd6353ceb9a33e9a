"""`duly doctor`: prints all findings, each with its remedy."""

from contextlib import closing

import click

from duly.api.doctor import examine
from duly.cli.applications import app_of, other_database_hint
from duly.cli.db import schema_finding, url_of
from duly.cli.failures import FAILURE
from duly.cli.output import print_json, print_line
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import print_fields
from duly.cli.urls import missing_file, package_of
from duly.core.diagnosis import Diagnosis, diagnosis_of
from duly.store import migrator
from duly.store.store_factory import open_store


@click.command("doctor")
@shared_options
@pass_session
def command(session: CommandSession) -> None:
    """Check the engine, settings, clocks, tables, workers and tasks.

    Ends with status 1 if there is an error; warnings alone do not count.
    """
    url = url_of(session)
    findings = [_schema(url, session)]
    if findings[0].level == "ok":
        findings += examine(app_of(session))
    is_wrong = any(finding.level == "error" for finding in findings)
    if session.as_json:
        print_json({"ok": not is_wrong, "findings": [each._asdict() for each in findings]})
    else:
        _print(findings, quiet=session.quiet)
    if is_wrong:
        raise click.exceptions.Exit(FAILURE)


def _schema(url: str, session: CommandSession) -> Diagnosis:
    needed = migrator.newest(package_of(url))
    missing = missing_file(url)
    if missing is not None:
        remedy = f"{other_database_hint(session)}, or create this one: duly db migrate"
        return Diagnosis("schema", "error", f"there is no database at {missing}", remedy)
    with closing(open_store(url, migrate=False)) as store:
        found = store.read_schema()
    status = schema_finding(found, needed)
    is_ok = status.name == "ok"
    needs = "" if is_ok else f", but this code needs {needed}"
    return diagnosis_of(
        "schema",
        f"version {found.version}{needs}",
        bad=not is_ok,
        level="error",
        remedy=status.advice,
    )


def _print(findings: list[Diagnosis], *, quiet: bool) -> None:
    shown = [each for each in findings if each.level != "ok"] if quiet else findings
    print_fields((each.check, f"{each.level}: {each.text}") for each in shown)
    for each in shown:
        if each.remedy:
            print_line(f"{each.check}: {each.remedy}")
