"""Tells which store an application uses: imports it, writes its address to a pipe, and ends.

A keeper runs no user code, and yet must look after the store that its children will use.
"""

import os
import subprocess
import sys

from duly.errors import DulyError
from duly.runtime.loading import load


def find_url(app: str) -> str | None:
    """Return the address that an application names; None if it cannot be loaded, which is told."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as answer:
        process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", __name__, app, str(writer)],
            pass_fds=(writer,),
            stdin=subprocess.DEVNULL,
        )
        os.close(writer)
        url = answer.read()
    return url if process.wait() == 0 and url else None


def main() -> None:
    """Answer for the application named on the command line."""
    app, descriptor = sys.argv[1:]
    try:
        url = load(app).url
    except DulyError as error:
        sys.stderr.write(f"cannot start: {error}\n")
        sys.exit(1)
    with os.fdopen(int(descriptor), "w") as answer:
        answer.write(url)


if __name__ == "__main__":
    main()
