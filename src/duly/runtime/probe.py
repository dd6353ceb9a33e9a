"""Tells which store an application uses: imports it, writes its address to a pipe, and ends.

A keeper runs no user code, and yet must look after the store that its children will use.
"""

import os
import subprocess
import sys

from duly.errors import BadOption, DulyError
from duly.runtime.loading import explained, load

_USAGE = 2


def find_url(app: str) -> str | int:
    """Return the address that an application names.

    If it cannot be loaded, that is told, and the exit status that says so is returned.
    """
    reader, writer = os.pipe()
    with os.fdopen(reader) as answer:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", __name__, app, str(writer)],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
        )
        os.close(writer)
        url = answer.read()
    status = process.wait()
    return url if status == 0 and url else max(1, status)


def main() -> None:
    """Answer for the application named on the command line."""
    app, descriptor = sys.argv[1:]
    try:
        url = load(app).url
    except DulyError as error:
        sys.stderr.write(explained(error))
        sys.exit(_USAGE if isinstance(error, BadOption) else 1)
    with os.fdopen(int(descriptor), "w") as answer:
        answer.write(url)


if __name__ == "__main__":
    main()
