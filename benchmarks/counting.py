"""Writes every SQL statement of a process to a file that an environment variable names.

SQLite has no server that could count. Each worker process therefore wraps `sqlite3.connect`, and
SQLite itself reports every statement that it begins to run, including BEGIN and COMMIT.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

VARIABLE = "DULY_BENCHMARK_STATEMENTS"


def count_if_asked() -> None:
    """Begin to write statements to a file, if the environment names one."""
    file = os.environ.get(VARIABLE)
    if file is None or sqlite3.connect is not _connect:
        return
    written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write_down(statement: str) -> None:
        # One write to a file opened for appending, so that processes do not mix their lines.
        os.write(written, f"{time.monotonic()} {' '.join(statement.split())}\n".encode())

    def connect(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        connection = _connect(*args, **kwargs)
        connection.set_trace_callback(write_down)
        return connection

    sqlite3.connect = connect


def read_statements(file: Path, begin: float, end: float) -> list[str]:
    """Return the statements between two times of the monotonic clock."""
    found = []
    for line in file.read_text().splitlines():
        at, _, statement = line.partition(" ")
        if begin <= float(at) < end:
            found.append(statement)
    return found


_connect: Any = sqlite3.connect
