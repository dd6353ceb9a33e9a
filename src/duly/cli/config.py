"""`duly config`: shows every setting with its source."""

from dataclasses import fields

import click

from duly.cli.applications import load_app
from duly.cli.output import print_json, print_line
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_table
from duly.cli.urls import masked
from duly.core.amounts import FOREVER
from duly.core.secret_names import REDACTED
from duly.settings import SECRETS, Settings, load_settings

_COLUMNS = (Column("SETTING", whole=True), Column("VALUE"), Column("FROM"))


@click.command("config")
@shared_options
@pass_session
def command(session: CommandSession) -> None:
    """Show every setting and where it came from.

    Settings in code or on the command line take precedence, then the environment (DULY_…), then
    [tool.duly] in the nearest pyproject.toml, then the default.
    """
    settings = load_settings()
    if session.app_reference is not None:
        app = load_app(session.app_reference)
        settings = app.settings
        if app.url != settings.url:
            settings = settings.over("application", url=app.url)
    settings = settings.over("option", url=session.url, app=session.app)
    found = {each.name: _entry(settings, each.name) for each in fields(Settings)[:-1]}
    if session.as_json:
        print_json({"settings": found})
    elif session.quiet:
        for name, entry in found.items():
            print_line(f"{name}={'' if entry['value'] is None else entry['value']}")
    else:
        rows = [(name, _shown(entry["value"]), str(entry["from"])) for name, entry in found.items()]
        print_table(_COLUMNS, rows)


def _entry(settings: Settings, name: str) -> dict[str, object]:
    value = getattr(settings, name)
    shown = masked(value) if name == "url" else "forever" if value == FOREVER else value
    if value and name in SECRETS:
        shown = REDACTED
    return {"value": shown, "from": settings.origins.get(name, "default")}


def _shown(value: object) -> str:
    return "-" if value is None or value == "" else str(value)
