"""Every command line and every piece of configuration in README and docs is valid."""

import configparser
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import fields

import click
import pytest
import yaml

from duly.cli import commands, worker
from duly.limits import GRACE_SECONDS
from duly.settings import Settings, check_settings
from duly.worker.shutdown import KILL_AFTER_GRACE
from tests.docs.pages import DOCS, PAGES, blocks_of, name_of

SHELLS = ("sh", "console")
ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "2>&1"}
"""Words that end a command."""
INLINE = re.compile(r"`duly ((?:[a-z-]+|-).*?)`", re.DOTALL)


def command_lines() -> Iterator[object]:
    """Yield the words of every `duly …` command in a block."""
    for block in blocks_of(*SHELLS):
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.kind == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in lines:
            for found in re.finditer(r"(?:^|[$(&|;] *)duly (.*)", line):
                words = shlex.split(found[1].partition(" #")[0].partition(")")[0], comments=True)
                end = next((at for at, word in enumerate(words) if word in ENDS), len(words))
                yield pytest.param(words[:end], id=f"{block.place} {line.strip()}")


def check_command(words: list[str]) -> None:
    """Check that the real commands can parse a command line without its `duly`."""
    command: click.Command = commands
    parent = None
    while isinstance(command, click.Group):
        context = click.Group.make_context(command, "duly", list(words), parent)
        words = [*context._protected_args, *context.args]
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, parent = found, context
    command.make_context("duly", list(words), parent)


@pytest.mark.parametrize("words", list(command_lines()))
def test_a_command_in_a_code_block_is_valid(words):
    check_command(words)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_command_that_a_page_mentions_exists(page):
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


WORDS_FOR_EMPTY = {"queues": "every queue", "exclude_queues": "none"}


def worker_defaults() -> Iterator[tuple[str, str]]:
    """Yield the options and defaults in the table of `duly worker`."""
    page = (DOCS / "how-to" / "workers.md").read_text()
    table = page.partition("| Option | Default | Meaning |\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[1:]:
        option, default, _ = row.strip("| ").split(" | ")
        yield option.strip("`"), default


def test_the_page_and_the_help_of_a_worker_have_the_defaults_of_its_settings():
    settings = {each.name: each.default for each in fields(Settings)}
    options = {name: each for each in worker.command.params for name in each.opts}
    told = dict(worker_defaults())
    real = {}
    for option in told:
        name, default = options[option].name, settings[options[option].name]
        real[option] = WORDS_FOR_EMPTY.get(name) or f"{default:g}"

    assert len(told) > 5
    assert told == real
    for option, default in real.items():
        if default.isdigit():
            assert options[option].help.endswith(f"; {default}.")


@pytest.mark.parametrize("block", blocks_of("toml"), ids=lambda block: block.place)
def test_settings_in_a_toml_block_exist(block):
    tool = tomllib.loads(block.text).get("tool", {})

    check_settings({name: (value, block.place) for name, value in tool.get("duly", {}).items()})


LONGEST_STOP = GRACE_SECONDS + KILL_AFTER_GRACE
"""The longest time that a worker may take to end, in seconds."""


@pytest.mark.parametrize("block", blocks_of("ini"), ids=lambda block: block.place)
def test_a_systemd_unit_starts_a_worker_and_allows_time_to_stop(block):
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment]  # systemd names have capitals
    unit.read_string(block.text)
    program, *words = shlex.split(unit["Service"]["ExecStart"])

    assert program.endswith("/duly")
    check_command(words)
    assert float(unit["Service"]["TimeoutStopSec"]) > LONGEST_STOP


@pytest.mark.parametrize("block", blocks_of("yaml"), ids=lambda block: block.place)
def test_a_manifest_has_valid_commands_and_allows_workers_time_to_stop(block):
    manifest = yaml.safe_load(block.text)
    values = list(everything_in(manifest))

    for name, value in values:
        if name == "command":
            assert value[0] == "duly"
            check_command(value[1:])
    graces = [value for name, value in values if name == "terminationGracePeriodSeconds"]
    assert all(seconds > LONGEST_STOP for seconds in graces)
    assert len(graces) == ("kind" in manifest)


def everything_in(node: object) -> Iterator[tuple[str, object]]:
    """Yield every name in a manifest, at any depth, with its value."""
    match node:
        case dict():
            for name, value in node.items():
                yield name, value
                yield from everything_in(value)
        case list():
            for item in node:
                yield from everything_in(item)
