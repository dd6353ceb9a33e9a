"""The reference in docs/reference matches the code."""

import inspect
from dataclasses import fields
from typing import get_overloads

import click
import pytest

import duly
from duly import Duly, Retry, Task
from duly.cli import commands
from duly.settings import AppOptions
from duly.task_options import define
from tests.docs.pages import DOCS
from tools.reference.options import meanings
from tools.reference.pages import pages

CALLS = {
    "Duly": (Duly.__init__, ["url", "tracing", *AppOptions.__annotations__]),
    "Duly.task": (Duly.task, [*define.__kwdefaults__]),
    "Task.using": (Task.using, [*Task.using.__kwdefaults__]),
    "Retry": (Retry, [field.name for field in fields(Retry)]),
}
"""Calls with many options, each with what has the docstring, and with its options."""


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


@pytest.mark.parametrize("name", CALLS)
def test_the_docstring_of_a_call_describes_its_options_and_no_others(name):
    described, options = CALLS[name]

    assert list(meanings(inspect.getdoc(described))) == options


@pytest.mark.parametrize("name", CALLS)
def test_every_option_of_a_call_has_a_row_with_its_type_default_and_meaning(made, name):
    described, options = CALLS[name]
    words = meanings(inspect.getdoc(described))
    section = made["python.md"].partition(f"#### Options of `{name}`\n")[2].partition("\n#")[0]

    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    assert [row[0] for row in rows] == [f"| `{option}`" for option in options]
    assert [row[3].removesuffix(" |") for row in rows] == [words[option] for option in options]
    assert all(len(row) == 4 and row[1] != "``" and row[2] for row in rows)


def test_the_signature_that_editors_show_for_a_task_is_that_of_its_options():
    (_, shown) = get_overloads(Duly.task)
    real = inspect.signature(define).parameters

    assert list(real.values())[1:] == list(inspect.signature(shown).parameters.values())[1:]


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
