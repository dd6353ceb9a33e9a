"""Every command line and every piece of configuration in README and docs is one that duly takes."""

import re
import shlex
import tomllib
from collections.abc import Iterator

import click
import pytest

from duly.cli import commands
from duly.settings import settled
from tests.docs.pages import PAGES, blocks_of, name_of

SHELLS = ("sh", "console")
ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "2>&1"}
"""What ends a command, as a word of its own."""
INLINE = re.compile(r"`duly ((?:[a-z-]+|-).*?)`", re.DOTALL)


def command_lines() -> Iterator[object]:
    """Give every `duly …` in a block, as its words."""
    for block in blocks_of(*SHELLS):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.kind == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            for found in re.finditer(r"(?:^|[$(&|;] *)duly (.*)", line):
                words = shlex.split(found[1].partition(" #")[0].partition(")")[0], comments=True)
                end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
                yield pytest.param(words[:end], id=f"{block.place} {line.strip()}")


@pytest.mark.parametrize("words", list(command_lines()))
def test_a_command_of_a_block_can_be_read(words):
    command: click.Command = commands
    parent = None
    while isinstance(command, click.Group):
        context = click.Group.make_context(command, "duly", list(words), parent)
        words = [*context._protected_args, *context.args]
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, parent = found, context

    command.make_context("duly", list(words), parent)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_that_a_page_mentions_is_one(page):
    for said in INLINE.findall(page.read_text()):
        command: click.Command = commands
        options: set[str] = set()
        for word in said.replace("\n", " ").split():
            options |= {
                opt for each in command.params for opt in (*each.opts, *each.secondary_opts)
            }
            if word.startswith("-"):
                assert word.partition("=")[0] in options | {"--help"}, f"duly {said}: {word}"
            elif isinstance(command, click.Group) and re.fullmatch("[a-z-]+", word):
                found = command.get_command(click.Context(command), word)
                assert found is not None, f"duly {said}: {word}"
                command = found


@pytest.mark.parametrize("block", blocks_of("toml"), ids=lambda block: block.place)
def test_settings_in_toml_are_settings(block):
    tool = tomllib.loads(block.text).get("tool", {})

    settled({name: (value, block.place) for name, value in tool.get("duly", {}).items()})
