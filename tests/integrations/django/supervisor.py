"""Restart a command of `manage.py` whenever it ends, as systemd restarts a killed process."""

import os
import runpy
import sys


def main() -> None:
    """Restart the command repeatedly, each time in a fork that has the imports of this module."""
    while (child := os.fork()) != 0:
        os.waitpid(child, 0)
    sys.argv[0] = "manage.py"
    sys.path.insert(0, ".")
    runpy.run_path("manage.py", run_name="__main__")


if __name__ == "__main__":
    main()
