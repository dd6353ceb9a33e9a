"""Prints escaped lines for users, and JSON for programs."""

import json
from contextlib import suppress
from typing import Any

import click

from duly.core.escape import clean, clean_lines


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document. ASCII escapes make it harmless to terminals too."""
    click.echo(json.dumps(document, indent=2))


def print_line(text: str) -> None:
    """Print one line of untrusted text."""
    click.echo(clean(text))


def print_block(text: str, *, indent: str = "") -> None:
    """Print several lines of untrusted text."""
    click.echo("\n".join(indent + line for line in clean_lines(text.rstrip()).split("\n")))


def print_note(text: str) -> None:
    """Print a note to stderr. A full disk there does not stop the command."""
    with suppress(OSError):
        click.echo(clean(text), err=True)
