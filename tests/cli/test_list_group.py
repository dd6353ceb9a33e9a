"""`duly runs` and similar groups list their items without a command."""

import pytest
from click.shell_completion import ShellComplete

from duly.cli import commands
from tests.cli.conftest import answer

GROUPS = ("runs", "dead", "schedules", "queues", "workers", "locks")


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_without_a_command_lists(app, cli, group):
    assert answer(cli(group, "--json")) == answer(cli(group, "list", "--json"))
    assert cli(group).stderr == cli(group, "list").stderr


def test_options_without_a_command_apply_to_the_list(app, cli):
    assert cli("runs", "--state", "failed").exit_code == 0
    assert "No such option" in cli("runs", "--statt", "failed").stderr


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_still_has_its_help_and_refuses_an_unknown_command(app, cli, group):
    shown = cli(group, "--help").stdout

    assert f"{group} [OPTIONS] [COMMAND] [ARGS]" in shown
    assert "Default command: list." in shown
    assert "No such command 'lits'" in cli(group, "lits").stderr


def test_a_shell_completes_the_commands_of_a_group():
    complete = ShellComplete(commands, {}, "duly", "_DULY_COMPLETE")

    names = [item.value for item in complete.get_completions(["runs"], "sh")]

    assert names == ["show"]
