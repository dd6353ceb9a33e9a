"""The reference in docs/reference matches the code."""

import click
import pytest

import duly
from duly.cli import commands
from tests.docs.pages import DOCS
from tools.reference.pages import pages


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The pages, newly generated."""
    return pages()


def test_the_reference_is_up_to_date(made):
    committed = {page.name: page.read_text() for page in (DOCS / "reference").glob("*.md")}

    assert committed == made, "run `make reference` and commit the pages"


def test_every_public_name_is_in_the_reference(made):
    told = made["python.md"] + made["errors.md"]

    assert [name for name in duly.__all__ if f"`{name}`" not in told] == []


def test_every_command_and_every_option_is_in_the_reference(made):
    told = made["command_line.md"]

    def walk(command: click.Command, path: str) -> None:
        assert f"# `{path}`\n" in told
        for option in command.params:
            said = ", ".join([*option.opts, *option.secondary_opts])
            assert isinstance(option, click.Argument) or said in told, f"{path} {said}"
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                walk(command.get_command(context, name), f"{path} {name}")

    for name in commands.list_commands(click.Context(commands)):
        walk(commands.get_command(click.Context(commands), name), f"duly {name}")
