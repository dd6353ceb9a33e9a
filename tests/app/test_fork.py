"""A process that forks after opening its store: parent and child both continue independently."""

import json
import subprocess
import sys

import pytest

from duly import Duly

FORKING = """
import json, os, sys, threading
import duly.app
from duly import Duly

app = Duly(sys.argv[1])

@app.task(name="note")
def note(who: str, number: int) -> str:
    return who

ids = [note.enqueue("parent", n).id for n in range(5)]
how = sys.argv[2]
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    inherited = app._store._opened
    if how == "close first":
        app.close()
    made = [note.enqueue("child", n).id for n in range(20)]
    assert app.store is not inherited
    kept = duly.store.per_process._inherited
    assert any(store is inherited for store in kept), "it was released"
    os.write(writer, json.dumps(made).encode())
    os.close(writer)
    if how == "worker in the child":
        app.worker().drain(timeout=20)
    if how == "exit at once":
        os._exit(0)
    sys.exit(0)

os.close(writer)
ids += [note.enqueue("parent", n).id for n in range(20)]
made = b""
while piece := os.read(reader, 65536):
    made += piece
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
ids += [note.enqueue("parent", n).id for n in range(5)]
if how == "worker in the parent":
    app.worker().drain(timeout=20)
print(json.dumps({"parent": ids, "child": json.loads(made)}))
"""


@pytest.mark.process
@pytest.mark.parametrize(
    "how",
    ["exit", "exit at once", "close first", "worker in the child", "worker in the parent"],
)
def test_parent_and_child_both_enqueue_and_nothing_is_lost(app: Duly, store_url, how):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, store_url, how],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    stored = {run.id: run for run in app.runs.list(limit=200)}
    assert (len(made["parent"]), len(made["child"])) == (30, 20)
    assert set(stored) == {*made["parent"], *made["child"]}
    if how == "worker in the parent":
        assert {run.state for run in stored.values()} == {"succeeded"}
