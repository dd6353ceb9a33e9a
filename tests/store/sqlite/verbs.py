"""What the tests of this folder share: a store for a block, and other Pythons beside it."""

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
"""For what a crash, a full disk or another process may do to the file, the journal decides."""


def open_at(path):
    """Open the store in a file for a block."""
    return closing(open_store(f"sqlite:///{path}"))


@contextmanager
def closing_life(store, worker=WORKER):
    """Show for a block that a worker lives here."""
    life = store.live(worker)
    try:
        yield life
    finally:
        life.end()


@contextmanager
def running(script, *arguments, **environment):
    """Run a script in another Python until the block ends; its output comes by lines."""
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
    """Send a running script a line."""
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
