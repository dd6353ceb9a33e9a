"""Begins a command of `manage.py` anew whenever it ends, as systemd does with what was killed."""

import subprocess
import sys

if __name__ == "__main__":
    while True:
        subprocess.run([sys.executable, "manage.py", *sys.argv[1:]], check=False)
