"""Two programs with workers inside them, and a task that keeps one interpreter from switching.

On SQLite all processes are on one machine, so the kernel shows that the program runs. On PostgreSQL
nothing shows it, and the run is taken over when the lease is over.
"""

import sys
from contextlib import ExitStack

import pytest

from duly import Duly
from tests.store.sqlite.verbs import running

pytestmark = [
    pytest.mark.stores("sqlite"),
    pytest.mark.process,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux shows it"),
]

LEASE_SECONDS, HELD_SECONDS = 0.9, 4.0

WORK = f"""
import ctypes, sys
from pathlib import Path
from duly import Duly

app = Duly(sys.argv[1], lease={LEASE_SECONDS}, beat={LEASE_SECONDS / 3})

@app.task(name="hold-the-interpreter")
def hold_the_interpreter() -> None:
    with Path(sys.argv[2]).open("a") as ledger:
        ledger.write("begun\\n")
    # A function that is called through PyDLL keeps the interpreter's lock.
    ctypes.PyDLL(None).usleep({round(HELD_SECONDS * 1_000_000)})

with app.worker():
    print("working", flush=True)
    sys.stdin.readline()
"""


def test_a_task_that_holds_the_interpreter_longer_than_the_lease_runs_once(store_url, tmp_path):
    ledger = tmp_path / "ledger"
    app = Duly(store_url)
    task = app.task(name="hold-the-interpreter")(_never_called)
    with ExitStack() as stack:
        for _ in range(2):
            process = stack.enter_context(running(WORK, store_url, ledger))
            assert process.stdout.readline() == "working\n"

        run = task.enqueue()
        run.result(timeout=10 * HELD_SECONDS)

    assert ledger.read_text() == "begun\n"
    assert run.refresh().record.attempt == 1
    app.close()


def _never_called() -> None:
    raise AssertionError("this program only enqueues")
