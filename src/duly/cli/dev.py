"""`duly dev`: runs a worker with schedules and the dashboard, and restarts them on changes."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import click

from duly.cli.dashboard import TOKEN, DashboardAddress, missing_extra
from duly.cli.output import print_line, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.clock import new_secret
from duly.observe.log_setup import FORMAT, set_up_logging
from duly.observe.logs import log_start
from duly.settings import load_settings
from duly.worker.app_loader import parse_reference

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 5.0
_BY_SIGNAL = 128
"""Shells add this to the number of the signal that ended a program."""
_HOST = "127.0.0.1"
_USUAL_PORT = 8_008
_PROGRAM = """\
from duly.worker.process_lifetime import die_with_parent
die_with_parent({})
from duly.__main__ import main
main()"""
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})

LogFunction = Callable[[str], None]


@click.command("dev")
@click.argument("reference", required=False, metavar="[APP]")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"Port of the dashboard; {_USUAL_PORT}, or any free port if that is taken.",
)
@click.option("--no-dashboard", is_flag=True, help="Run only the tasks and schedules.")
@shared_options
@pass_session
def command(
    session: CommandSession, /, *, reference: str | None, port: int | None, no_dashboard: bool
) -> None:
    """Run the tasks and schedules of APP (module:attribute), and restart when the code changes.

    Watches the Python files below this folder. The dashboard is served to this machine only; the
    printed link also allows operator actions. For production use `duly worker` and `duly
    dashboard`.
    """
    app = reference or session.app_reference
    if app is None:
        message = "name the application: duly dev module:attribute, or set DULY_APP"
        raise click.UsageError(message)
    parse_reference(app)
    if session.as_json:
        os.environ[FORMAT] = "json"
    tell = _log_function()
    shared = [] if session.url is None else ["--url", session.url]
    programs = [
        _Program(
            "worker", [app, "--grace", str(_GRACE_SECONDS), *shared, *_output_options(session)], {}
        )
    ]
    pages = None if no_dashboard else _dashboard_program(port, tell)
    if pages is not None:
        programs.append(pages.with_options("--app", app, *shared))
    if not session.quiet:
        tell(f"duly dev: {app}; restarts when a Python file below {Path.cwd()} changes")
    with _exit_on_signals(signal.SIGTERM, signal.SIGHUP):
        while True:
            _work_until_changed(programs, tell)
            tell("duly dev: the code has changed")


class _Program(NamedTuple):
    """A duly command that runs as a child process."""

    name: str
    options: list[str]
    secrets: Mapping[str, str]
    """Environment variables for the process."""
    output: int | None = None

    def with_options(self, *options: str) -> "_Program":
        return self._replace(options=[*self.options, *options])

    def start(self) -> "subprocess.Popen[bytes]":
        # In its own process group, since Ctrl-C signals the terminal's whole group. A worker that
        # gets two signals would not wait for its tasks.
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own commands
            [sys.executable, "-c", _PROGRAM.format(os.getpid()), self.name, *self.options],
            env=os.environ | self.secrets,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            process_group=0,
        )


def _log_function() -> LogFunction:
    """Return a function that prints a line in the worker's log format."""
    if load_settings().log_format == "json":
        set_up_logging("INFO", "json")
        return log_start
    return print_note


def _output_options(session: CommandSession) -> list[str]:
    return (["-v"] if session.verbose else []) + (["--quiet"] if session.quiet else [])


# -- the dashboard --


def _dashboard_program(port: int | None, tell: LogFunction) -> _Program | None:
    """Print the address of the dashboard and return its program, or None without its packages."""
    missing = missing_extra()
    if missing is not None:
        tell(f"duly dev: no dashboard, because {missing}")
        return None
    settings = load_settings()
    secrets = {}
    if not settings.dashboard_token and not settings.dashboard_users:
        # Generated here, so that open pages stay signed in after a restart.
        secrets[TOKEN] = new_secret()
    found = _free_port(port)
    place = DashboardAddress(f"http://{_HOST}:{found}/", secrets.get(TOKEN))
    if settings.log_format == "json":
        click.echo(json.dumps(place.as_json(write=True)))
    else:
        print_line(f"Dashboard at {place.address}")
        if place.link:
            print_line(f"Sign in with this link: {place.link}")
    options = ["--host", _HOST, "--port", str(found), "--write", "--create", "--quiet"]
    if settings.log_format == "json":
        options.append("--json")
    # Its output is discarded, because this command has printed it.
    return _Program("dashboard", options, secrets, subprocess.DEVNULL)


def _free_port(wanted: int | None) -> int:
    # Needs the packages of the dashboard.
    from duly.dashboard.server import CannotListen, listen  # noqa: PLC0415

    try:
        with closing(listen(_HOST, _USUAL_PORT if wanted is None else wanted)) as socket:
            return int(socket.getsockname()[1])
    except CannotListen:
        if wanted is not None:
            raise
        return _free_port(0)


# -- reloading --


@contextmanager
def _exit_on_signals(*signals: signal.Signals) -> Iterator[None]:
    """End the command on these signals as Ctrl-C does, together with its child processes.

    An ignored signal stays ignored: with `nohup` the command must outlive its terminal.
    """

    def end(number: int, _frame: object) -> None:
        raise click.exceptions.Exit(_BY_SIGNAL + number)

    heeded = [each for each in signals if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.signal(each, end) for each in heeded}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _work_until_changed(programs: list[_Program], tell: LogFunction) -> None:
    before = _modification_times(Path.cwd())
    running = {program.name: program.start() for program in programs}
    ended: set[str] = set()
    try:
        while _modification_times(Path.cwd()) == before:
            for name, process in running.items():
                if name not in ended and process.poll() is not None:
                    ended.add(name)
                    tell(f"duly dev: the {name} has ended; waiting for the code to change")
            threading.Event().wait(_LOOK_SECONDS)
    finally:
        _end(list(running.values()))


def _end(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Stop programs gracefully. A second Ctrl-C ends them at once."""
    try:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            _wait_or_kill(process)
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise


def _wait_or_kill(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a program that was asked to stop, and kill it if necessary."""
    try:
        process.wait(_GRACE_SECONDS * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _modification_times(folder: Path) -> dict[str, int]:
    """Return the modification time of each Python file below a folder."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)  # noqa: PTH118 - as os.walk gives it
                try:
                    found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - as above
                except OSError:
                    continue  # The file has just been removed.
    return found
