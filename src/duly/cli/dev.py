"""`duly dev`: a worker, with its schedules, that begins anew when the code changes."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import click

from duly.cli.output import print_note
from duly.cli.session import Session, pass_session, shared_options
from duly.runtime.loading import parse_reference

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 5.0
_PROGRAM = "from duly.cli import main; main()"
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


@click.command("dev")
@click.argument("reference", required=False, metavar="[APP]")
@shared_options
@pass_session
def command(session: Session, /, *, reference: str | None) -> None:
    """Run the tasks and schedules of APP (module:attribute), anew whenever the code changes.

    Looks at the Python files below this folder. For production there is `duly worker`.
    """
    app = reference or session.app_reference
    if app is None:
        message = "name the application: duly dev module:attribute, or set DULY_APP"
        raise click.UsageError(message)
    parse_reference(app)
    arguments = ["worker", app, "--grace", str(_GRACE_SECONDS)]
    if session.url is not None:
        arguments += ["--url", session.url]
    print_note(f"duly dev: {app}; begins anew when a Python file below {Path.cwd()} changes")
    while True:
        _work_until_changed([sys.executable, "-c", _PROGRAM, *arguments])
        print_note("duly dev: the code has changed")


def _work_until_changed(worker: list[str]) -> None:
    before = _stamps(Path.cwd())
    process = subprocess.Popen(worker)  # noqa: S603 - this interpreter, our own command
    has_ended = False
    try:
        while _stamps(Path.cwd()) == before:
            if not has_ended and process.poll() is not None:
                has_ended = True
                print_note("duly dev: the worker has ended; waiting for the code to change")
            threading.Event().wait(_LOOK_SECONDS)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ask the worker to stop, and make it."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS * 2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _stamps(folder: Path) -> dict[str, int]:
    """Return when each Python file below a folder was changed."""
    found = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(place, name)  # noqa: PTH118 - as os.walk gives it
                try:
                    found[path] = os.stat(path).st_mtime_ns  # noqa: PTH116 - as above
                except OSError:
                    continue  # It was removed just now.
    return found
