"""Functions that the tests of this folder share: to open a store, and to run other processes."""

import os
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from duly.store.store_factory import open_store
from tests.store.conformance.verbs import WORKER

REPOSITORY = Path(__file__).parents[3]
TIMEOUT = 30.0
BOTH_JOURNALS = pytest.mark.parametrize("store_kind", ["sqlite-wal", "sqlite-rollback"])
"""The effect of a crash, a full disk or another process on the file depends on the journal."""


def open_at(path):
    """Open the store in a file for a block."""
    return closing(open_store(f"sqlite:///{path}"))


@contextmanager
def closing_life(store, worker=WORKER):
    """Hold the lock of a live worker in this process for a block."""
    life = store.live(worker)
    try:
        yield life
    finally:
        life.end()


@contextmanager
def running(script, *arguments, **environment):
    """Run a script in another Python process until the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=REPOSITORY,
        env=os.environ | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell(process, word):
    """Send a line to a running script."""
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
