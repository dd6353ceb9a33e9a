"""Every command, found in the command tree, so that new commands are tested too."""

import json
import sys
from collections.abc import Iterator
from datetime import timedelta

import click
import pytest

from duly.cli import commands

Path = tuple[str, ...]

ANSWERS: dict[str, str] = {
    "enqueue": "add [1]",
    "runs list": "",
    "runs show": "{done}",
    "runs tail": "--for 0s",
    "runs wait": "{done}",
    "runs cancel": "{later}",
    "runs reschedule": "{later} --delay 2h",
    "runs retry": "{done}",
    "runs resolve": "{dead} --done",
    "why": "{later}",
    "dead list": "",
    "dead groups": "",
    "dead show": "{dead}",
    "dead export": "",
    "dead retry": "{dead} --yes",
    "dead discard": "{dead} --yes --reason closed",
    "schedules list": "",
    "schedules show": "hourly",
    "schedules next": "hourly",
    "schedules firings": "hourly",
    "schedules pause": "hourly",
    "schedules resume": "hourly",
    "schedules run": "hourly",
    "schedules remove": "hourly",
    "schedules backfill": "hourly --from 2020-01-01T00:00Z --to 2020-01-01T02:00Z",
    "queues list": "",
    "queues pause": "mail",
    "queues resume": "mail",
    "queues limit": "mail 3",
    "queues drain": "mail",
    "workers list": "",
    "locks list": "",
    "deploy-mark": "v1",
    "db migrate": "",
    "db status": "",
    "db sql": "",
    "db check": "",
    "db prune": "--yes",
    "db backup": "copy.db",
    "audit": "",
    "restore": "--since 1h --yes",
    "config": "",
    "health": "",
    "doctor": "",
}
"""The arguments of each command in addition to --json."""

LASTING = {"worker", "dev", "dashboard", "demo", "move", "prove"}
"""These never end or need more than one store. The tests of each command check its JSON."""


def tree(group: click.Group = commands, above: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Return every command and group below one."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield (*above, name), found
        if isinstance(found, click.Group):
            yield from tree(found, (*above, name))


EVERY_COMMAND = dict(tree())


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_every_command_has_help_and_takes_the_shared_options(cli, path):
    result = cli(*path, "--help")

    assert result.exit_code == 0
    for option in ("--app", "--url", "--json", "--quiet", "-v, --verbose"):
        assert option in result.stdout


def test_the_table_has_every_command():
    leaves = [
        " ".join(path)
        for path, found in EVERY_COMMAND.items()
        if not isinstance(found, click.Group)
    ]

    assert set(leaves) == set(ANSWERS) | LASTING


def test_every_command_can_write_json(app, cli, run_of, dead, drain):
    done, later = run_of("add", 1), run_of("add", 2, delay=3600)
    drain()
    add = sys.modules["orders"].add
    names = {"done": done.id, "later": later.id, "dead": dead[0]}

    for name, template in ANSWERS.items():
        if name.startswith("schedules"):
            app.schedules.add("hourly", add, every=timedelta(hours=1), args=(1,))
        given = [part.format(**names) for part in template.split()]

        result = cli(*name.split(), *given, "--json")

        if result.stdout:
            documents = result.stdout.splitlines() if "export" in name or "tail" in name else []
            assert all(map(json.loads, documents or [result.stdout])), name
        else:
            assert result.exit_code in {1, 2}, name
            assert json.loads(result.stderr)["error"]["kind"], name


LISTS = (
    *("runs list", "dead list", "dead groups", "schedules list"),
    *("queues list", "workers list", "locks list"),
)


def test_an_empty_list_names_the_searched_store(app, cli):
    shown = app.store.shown_url
    for name in LISTS:
        empty = cli(*name.split())
        verbose = cli(*name.split(), "-v")

        assert (empty.exit_code, empty.stdout) == (0, ""), name
        assert len(empty.stderr.splitlines()) == 1, name
        assert shown in empty.stderr, name
        assert verbose.stderr.splitlines()[0] == f"Store: {shown}", name
        assert cli(*name.split(), "-v", "--json").stderr == "", name
