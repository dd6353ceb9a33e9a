"""The settings of an application, told by a process that imports it and ends.

A keeper runs no user code, and yet must look after the store that its children will use.
"""

import json
import os
import select
import subprocess
import sys

from duly.errors import AppBroken, BadOption, DulyError
from duly.observe.log_setup import write_failure
from duly.settings import Settings, check_settings
from duly.worker import app_probe_program
from duly.worker.app_loader import explanation_of, load
from duly.worker.process_lifetime import die_with_parent, exit_text

_USAGE = 2
_LOOK_SECONDS = 0.1
"""How often to look whether a probe is still there that says nothing."""
_PIECE_BYTES = 1 << 16


def find_settings(app: str) -> Settings | int:
    """Return the settings of an application, with the address of its store.

    If it cannot be loaded, that is told, and the exit status that says so is returned.
    """
    reader, writer = os.pipe()
    try:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", app_probe_program.__name__, app, str(writer), str(os.getpid())],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
        )
        os.close(writer)
        try:
            line = _read_line(reader, process)
            status = process.wait()
        except BaseException:  # as Ctrl-C, while the application is being imported
            process.kill()
            process.wait()
            raise
    finally:
        os.close(reader)
    if line is None:
        error = AppBroken(_silence(app, status))
        write_failure(error, explanation_of(error))
        return 1
    answer = json.loads(line)
    return answer if isinstance(answer, int) else check_settings(answer)


def main() -> None:
    """Import the application and write its settings, or an exit status if that cannot be."""
    app, descriptor, parent = sys.argv[1:]
    die_with_parent(int(parent))
    answer: object
    try:
        found = load(app)
        answer = {**found.settings.as_given(), "url": (found.url, "application")}
    except DulyError as error:
        write_failure(error, explanation_of(error))
        answer = _USAGE if isinstance(error, BadOption) else 1
    try:
        with os.fdopen(int(descriptor), "w") as writer:
            writer.write(json.dumps(answer) + "\n")
    except OSError:  # Who asked is gone, or the application has closed it.
        sys.exit(1)


def _read_line(reader: int, process: "subprocess.Popen[bytes]") -> bytes | None:
    """Read one line; return None if the process ends before.

    What the application forks has the pipe, too, and may keep it open for ever.
    """
    read = b""
    while b"\n" not in read:
        has_ended = process.poll() is not None
        if select.select([reader], [], [], 0 if has_ended else _LOOK_SECONDS)[0]:
            piece = os.read(reader, _PIECE_BYTES)
            if not piece:
                return None
            read += piece
        elif has_ended:
            return None
    return read.partition(b"\n")[0]


def _silence(app: str, status: int) -> str:
    return (
        f"the process that imports {app} {exit_text(status)} before it reported its settings; look "
        "for code that ends it during the import, such as os._exit(), or for a lack of memory"
    )
