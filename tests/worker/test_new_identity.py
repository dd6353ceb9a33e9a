"""An embedded worker that others took for dead: what it leaves, and what its successor needs."""

import shutil
import tempfile
import threading

from duly import current
from duly.store.store_factory import runtime_folder
from duly.worker.services.recovery import recover_worker
from tests.servers.processes import wait_until
from tests.worker.waits import take_over


def test_all_threads_of_the_old_worker_end_after_its_last_body(app):
    entered, go_on = threading.Event(), threading.Event()

    @app.task(name="body")
    def body(number: int) -> int:
        if number == 0 and current().fence == 1:
            entered.set()
            go_on.wait(30)
        return current().fence

    short = app.enqueue_many(body.call(number) for number in range(1, 101))
    with app.worker(concurrency=1, lease=0.9, beat=0.3) as worker:
        assert [run.result(timeout=20) for run in short] == [1] * 100
        runs = app.enqueue_many(body.call(number) for number in range(5))
        assert entered.wait(20)
        old = worker._worker
        # After short bodies it claims ahead. It loses these runs before it starts them.
        wait_until(lambda: len(old.inflight) == 5, seconds=20, what="it has claimed all runs")
        take_over(app, worker, runs[0].id)
        assert [run.result(timeout=20) for run in runs] == [2] * 5
        assert old._settler.is_alive()
        go_on.set()

        wait_until(
            lambda: not (old._settler.is_alive() or old._loop_runner._thread.is_alive()),
            seconds=20,
            what="the settler and the event loop of the old worker end",
        )


def test_a_worker_whose_folder_was_removed_continues_under_a_new_identity(
    app, tmp_path, monkeypatch
):
    # On PostgreSQL the folder of all workers of this user is there.
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))

    @app.task(name="body")
    def body() -> str:
        return "done"

    with app.worker(lease=0.9, beat=0.3) as worker:
        before = worker.worker_id
        folder = runtime_folder(app.store)
        shutil.rmtree(folder)
        recover_worker(app.store, app.bus, before, folder)

        wait_until(
            lambda: worker.worker_id != before and worker.is_live,
            seconds=20,
            what="it has a new identity",
        )
        assert body.enqueue().result(timeout=20) == "done"
