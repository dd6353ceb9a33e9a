"""The settings of an application, told by a process that imports it and ends.

A keeper runs no user code, and yet must look after the store that its children will use.
"""

import json
import os
import subprocess
import sys

from duly.errors import BadOption, DulyError
from duly.observe.writing import tell_failure
from duly.runtime import probe_process
from duly.runtime.loading import explained, load
from duly.settings import Settings, settled

_USAGE = 2


def find_settings(app: str) -> Settings | int:
    """Return the settings of an application, with the address of its store.

    If it cannot be loaded, that is told, and the exit status that says so is returned.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader) as words:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", probe_process.__name__, app, str(writer)],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
        )
        os.close(writer)
        found = words.read()
    status = process.wait()
    if status or not found:
        return max(1, status)
    return settled(json.loads(found))


def answer(app: str, descriptor: int) -> None:
    """Import the application and write its settings there, or say why it cannot be loaded."""
    try:
        found = load(app)
    except DulyError as error:
        tell_failure(error, explained(error))
        sys.exit(_USAGE if isinstance(error, BadOption) else 1)
    given = {**found.settings.as_given(), "url": (found.url, "application")}
    with os.fdopen(descriptor, "w") as writer:
        json.dump(given, writer)
