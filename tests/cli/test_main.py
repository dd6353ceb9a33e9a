"""The command line as a whole: help, exit statuses, errors, terminals."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from duly.cli import commands
from duly.cli.added_commands import ENTRY_POINTS, AddedCommand, added_commands
from duly.cli.failures import status_of
from duly.cli.runs import list_runs
from duly.errors import RunNotFound, SchemaMismatch, StoreFull, StoreUnavailable, WorkerTimeout
from tests.cli.conftest import answer, error

DULY = str(Path(sys.executable).with_name("duly"))


def duly(*args, **environment):
    return subprocess.run(
        [DULY, *args],
        env=os.environ | environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )


def test_a_misspelt_command_suggests_the_right_command(cli):
    result, below = cli("wurker", "shop:app"), cli("runs", "lst")

    assert (result.exit_code, below.exit_code) == (2, 2)
    assert "No such command 'wurker'. Did you mean 'worker'?" in result.stderr
    assert "Did you mean 'list'?" in below.stderr
    assert "No such command 'xyzzy'." in cli("xyzzy").stderr


def test_the_package_can_be_run_as_a_program():
    command = [sys.executable, "-m", "duly", "--version"]

    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=50).stdout

    assert said == duly("--version").stdout


def test_help_lists_the_commands_in_their_own_words(cli):
    result = cli("--help")

    for name in commands.list_commands(None):
        found = commands.get_command(None, name)
        assert name in result.stdout
        assert found is not None
        if name != "demo":
            summary = found.help.split("\n")[0].split(":")[0].split("(")[0].rstrip(".").strip()
            assert summary.split()[0] in result.stdout


@pytest.mark.process
def test_help_loads_no_command_and_no_rich():
    program = (
        "import sys, duly.cli\n"
        "try: duly.cli.commands(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {name for name in sys.modules if name.startswith('duly.cli.')}\n"
        "print(sorted(loaded), 'rich' in sys.modules, file=sys.stderr)\n"
    )

    result = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    expected = ["duly.cli.added_commands", "duly.cli.failures", "duly.cli.session"]
    assert result.stderr == f"{expected} False\n"


@pytest.fixture
def others(monkeypatch) -> Iterator[list[EntryPoint]]:
    """The entry points of other distributions, to which a test adds its own."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(metadata, "entry_points", lambda **_: found)
    added_commands.cache_clear()
    yield found
    added_commands.cache_clear()


def own_entry_point(name: str) -> EntryPoint:
    return EntryPoint(name, f"{__name__}:{name}", ENTRY_POINTS)


def two_more() -> dict[str, AddedCommand]:
    return {
        "greet": AddedCommand("Say hello.", "orders"),
        "audit": AddedCommand("Do nothing.", "a_module_that_does_not_exist"),
    }


def returns_nonsense() -> list[str]:
    return ["greet"]


def raises() -> dict[str, AddedCommand]:
    raise ImportError("no module named \x1b[31mred")


def exits() -> dict[str, AddedCommand]:
    sys.exit("set BANK_URL first")


def says_nothing() -> dict[str, tuple[str | None, str]]:
    return {"quiet": (None, "orders")}


def breaks_the_line() -> dict[str, AddedCommand]:
    return {"red\x1b[31m\nline": AddedCommand("Say hello.", "orders")}


def test_another_distribution_can_add_a_command_but_not_replace_one(cli, app, others):
    others.append(own_entry_point("two_more"))
    sys.modules["orders"].command = click.Command("greet", callback=lambda: click.echo("hello"))

    assert re.search(r"greet +Say hello\.", cli("--help").stdout)
    assert cli("greet").stdout == "hello\n"
    assert "Do nothing." not in cli("--help").stdout
    assert cli("audit").exit_code == 0
    assert "Did you mean 'greet'?" in cli("gret").stderr


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("raises", r"ImportError: no module named \x1b[31mred"),
        ("returns_nonsense", "AttributeError"),
        ("not_there", "AttributeError"),
        ("exits", "SystemExit: set BANK_URL first"),
        ("says_nothing", "TypeError: 'quiet' has"),
        ("breaks_the_line", r"TypeError: 'red\x1b[31m\nline' has"),
    ],
)
def test_a_broken_distribution_breaks_no_other_command(cli, others, broken, reason):
    others += [own_entry_point(broken), own_entry_point("two_more")]

    helped = cli("--help")
    missing = cli("demo")

    assert (helped.exit_code, cli("config").exit_code, missing.exit_code) == (0, 0, 2)
    assert "greet" in helped.stdout
    for said in (helped.stdout, missing.stderr):
        words = " ".join(said.split())
        assert f"The commands of {__name__}:{broken} cannot be used ({reason}" in words


@pytest.mark.parametrize("name", ["demo", "prove"])
def test_a_command_of_duly_prove_that_is_not_installed_names_the_installation(cli, others, name):
    result = cli(name, "--help")

    assert result.exit_code == 2
    assert f"'{name}' is a command of the package duly-prove" in result.stderr
    assert "pip install ./prove" in result.stderr
    assert error(cli("--json", name))["kind"] == "UsageError"
    assert name not in cli("--help").stdout.split()


def test_a_command_of_duly_does_not_read_entry_points(cli, app, monkeypatch):
    monkeypatch.setattr(metadata, "entry_points", None)
    added_commands.cache_clear()

    assert cli("runs", "list").exit_code == 0
    assert cli("--version").exit_code == 0
    with pytest.raises(TypeError):
        cli("demo")


def test_an_unknown_command_is_a_usage_error(cli):
    assert cli("nonsense").exit_code == 2
    assert cli("runs", "nonsense").exit_code == 2
    assert error(cli("--json", "nonsense"))["kind"] == "UsageError"
    assert error(cli("--json", "--nonsense"))["kind"] == "UsageError"


def test_the_version_is_printed(cli):
    assert re.fullmatch(r"duly \d+\.\d+\.\d+\n", cli("--version").stdout)


def test_shared_options_are_taken_before_and_after_the_command(cli, app, url, monkeypatch):
    monkeypatch.delenv("DULY_URL")
    monkeypatch.delenv("DULY_APP")

    for args in (
        ("--url", url, "--json", "runs", "list"),
        ("runs", "--url", url, "--json", "list"),
        ("runs", "list", "--url", url, "--json"),
        ("--json", "--url", "sqlite:///other.db", "runs", "list", "--url", url),
    ):
        assert answer(cli(*args)) == {"runs": [], "cursor": None}


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (RunNotFound("x"), 3),
        (WorkerTimeout("x"), 4),
        (StoreUnavailable("x"), 75),
        (StoreFull("x"), 1),
        (SchemaMismatch("x"), 1),
    ],
)
def test_every_failure_has_its_exit_status(failure, status):
    assert status_of(failure) == status


def test_a_database_that_cannot_be_opened_now_is_a_temporary_failure(cli, folder):
    (folder / "folder.db").mkdir()

    result = cli("runs", "list", "--url", "sqlite:///folder.db")

    assert result.exit_code == 75
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.skipif(
    find_spec("duly.store.postgres.store") is None, reason="there is no store for PostgreSQL yet"
)
@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list"),
        ("runs", "show", "x"),
        ("dead", "retry", "--all", "--yes"),
        ("queues", "pause", "mail"),
        ("workers", "list"),
        ("db", "status"),
        ("db", "migrate"),
        ("worker", "orders:app"),
        ("enqueue", "orders:add", "[1]", "--app", "orders:app"),
    ],
    ids=" ".join,
)
def test_a_server_that_does_not_answer_is_a_temporary_failure(cli, folder, command):
    result = cli(*command, "--url", "postgresql://duly:s3cret@127.0.0.1:1/duly", "--json")

    assert result.exit_code == 75
    assert error(result)["kind"] == "StoreUnavailable"
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("address", "is_warned_of"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/shop", True),
        ("postgresql://ann@127.0.0.1:1/shop?password=s3cret", True),
        ("postgresql://ann@127.0.0.1:1/shop", False),
    ],
)
def test_a_password_on_the_command_line_causes_a_warning(cli, folder, address, is_warned_of):
    said = cli("runs", "list", "--url", address).stderr

    assert ("DULY_URL" in said) == is_warned_of
    assert "s3cret" not in said
    assert "DULY_URL" not in cli("runs", "list", "-q", "--url", address).stderr


def test_ctrl_c_ends_with_130(cli, app, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(list_runs, "callback", interrupted)

    assert cli("runs", "list").exit_code == 130


@pytest.mark.process
def test_the_installed_command_works(app, run_of):
    run = run_of("add", 1)

    listed = duly("runs", "list", "--json")
    missing = duly("runs", "show", "nothing")

    assert json.loads(listed.stdout)["runs"][0]["id"] == run.id
    assert missing.returncode == 3
    assert missing.stderr.startswith("Error: there is no run 'nothing'")


@pytest.mark.process
def test_a_closed_output_pipe_causes_no_traceback(app, run_of):
    run_of("add", 1)

    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run(
        [DULY, "runs", "list", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        text=True,
    )
    os.close(writer)

    assert result.returncode == 1
    assert result.stderr == ""


@pytest.mark.process
def test_a_terminal_without_unicode_gets_escapes(app, run_of):
    run_of("talk", "\N{SNOWMAN}")

    result = duly("runs", "list", PYTHONIOENCODING="ascii")

    assert result.returncode == 0
    assert r"\u2603" in result.stdout


@pytest.mark.process
@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_tables_fit_the_terminal_and_keep_ids_whole(app, run_of, columns):
    ids = {run_of("talk", "x" * 200).id for _ in range(2)}

    drawn = on_terminal([DULY, "runs", "list"], columns, os.environ | {"NO_COLOR": "1"})

    # Bold does not count as a colour.
    lines = [re.sub(r"\x1b\[[01]m", "", line).rstrip() for line in drawn]
    assert {line.split()[0] for line in lines[1:]} == ids
    assert max(map(len, lines)) <= max(columns, 60)
    assert not any("\x1b" in line for line in lines)


@pytest.mark.process
def test_states_are_coloured_unless_no_color_is_set(app, run_of):
    run_of("add", 1)
    environment = {name: os.environ[name] for name in os.environ if name != "NO_COLOR"}

    lines = on_terminal([DULY, "runs", "list"], 80, environment | {"TERM": "xterm"})

    assert "\x1b[36mqueued" in lines[1]


def on_terminal(command, columns, environment):
    """Run a command on its own terminal and return the printed lines."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    kept = {name: value for name, value in environment.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=kept) as process:
        os.close(theirs)
        drawn = b""
        while True:
            try:
                piece = os.read(ours, 65_536)
            except OSError:
                break
            if not piece:
                break
            drawn += piece
        process.wait(50)
    os.close(ours)
    return [line.rstrip() for line in drawn.decode().splitlines()]


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("postgresql://ann:s3cret@127.0.0.1:1/shop", True),
        ("postgresql://127.0.0.1:1/shop?user=ann&password=s3cret", True),
        ("postgresql://127.0.0.1:1/shop?sslpassword=s3cret", True),
        ("postgresql+psycopg://ann:s3cret@127.0.0.1:1/shop", True),
        ("postgresql://ann@127.0.0.1:1/shop?user=ann", False),
    ],
)
def test_a_password_in_an_address_on_the_command_line_causes_a_warning(folder, cli, url, is_warned):
    result = cli("health", "--url", url)

    assert ("can read the password" in result.stderr) is is_warned
    assert "s3cret" not in result.output
