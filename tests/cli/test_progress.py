"""Long commands draw progress bars, unless they are quiet or print JSON."""

import re
from io import StringIO

import pytest
from rich.console import Console

import duly.cli.progress


@pytest.fixture
def drawn(monkeypatch) -> StringIO:
    """The output on a terminal."""
    found = StringIO()
    console = Console(file=found, force_terminal=True, width=100)
    monkeypatch.setattr(duly.cli.progress, "stderr_console", lambda: console)
    return found


def text_of(drawn: StringIO) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", drawn.getvalue())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("audit",), "Auditing"),
        (("db", "check"), "Checking"),
        (("queues", "drain", "mail"), "Draining mail"),
        (("dead", "retry", "--all", "--yes"), "Retry"),
    ],
)
def test_a_long_command_draws_a_bar_unless_it_is_quiet_or_prints_json(
    app, cli, dead, drawn, command, words
):
    for option in ("--json", "--quiet"):
        cli(*command, option)
        assert drawn.getvalue() == "", option

    cli(*command)

    assert words in text_of(drawn)


@pytest.mark.stores("sqlite")
def test_a_backup_has_a_bar(app, cli, drawn):
    assert cli("db", "backup", "copy.db").exit_code == 0

    assert "Copying" in text_of(drawn)


def test_a_bar_shows_the_remaining_runs_of_a_queue(app, cli, run_of, drawn):
    for number in range(3):
        run_of("add", number)

    assert cli("queues", "drain", "default", "--timeout", "0").exit_code == 4

    assert "0/3" in text_of(drawn)
