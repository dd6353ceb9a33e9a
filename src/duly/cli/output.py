"""What commands print: lines for people, escaped, and JSON for programs."""

import json
from contextlib import suppress
from typing import Any

import click

from duly.core.escape import clean, clean_lines


def print_json(document: dict[str, Any]) -> None:
    """Write one document; escaping all but ASCII makes it harmless to terminals too."""
    click.echo(json.dumps(document, indent=2))


def print_line(text: str) -> None:
    """Write one line of text from anywhere."""
    click.echo(clean(text))


def print_block(text: str, *, indent: str = "") -> None:
    """Write several lines of text from anywhere."""
    click.echo("\n".join(indent + line for line in clean_lines(text.rstrip()).split("\n")))


def print_note(text: str) -> None:
    """Write to stderr what is not part of the answer; a disk that is full there ends nothing."""
    with suppress(OSError):
        click.echo(clean(text), err=True)
