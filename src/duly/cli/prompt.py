"""Asks for confirmation before actions that cannot be undone."""

import click

from duly.cli.failures import NotConfirmed
from duly.cli.session import CommandSession

yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm_by_name(session: CommandSession, warning: str, word: str) -> None:
    """Continue only if the user types a word, so that the warning has been read."""
    if session.as_json:
        message = "--json cannot ask for confirmation; add --yes"
        raise click.UsageError(message)
    try:
        typed = click.prompt(
            f"{warning} Type {word} to continue", default="", show_default=False, err=True
        )
    except click.Abort:
        click.echo(err=True)
        typed = ""
    if typed != word:
        message = f"nothing was done; type {word}, or add --yes to continue without confirmation"
        raise NotConfirmed(message)


def confirm(session: CommandSession, question: str) -> None:
    """Continue only if the user says yes."""
    if session.as_json:
        message = "--json cannot ask for confirmation; add --yes"
        raise click.UsageError(message)
    try:
        confirmed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        confirmed = False
    if not confirmed:
        message = "nothing was done; answer yes, or add --yes to continue without confirmation"
        raise NotConfirmed(message)
