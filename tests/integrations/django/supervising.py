"""Begins a command of `manage.py` anew whenever it ends, as systemd does with what was killed."""

import os
import runpy
import sys


def main() -> None:
    """Begin it again and again; each of them is forked, with what is imported here."""
    while (child := os.fork()) != 0:
        os.waitpid(child, 0)
    sys.argv[0] = "manage.py"
    sys.path.insert(0, ".")
    runpy.run_path("manage.py", run_name="__main__")


if __name__ == "__main__":
    main()
