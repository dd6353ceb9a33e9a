"""A database that goes away and comes back ends no worker process and costs no run anything."""

import asyncio
import threading
import time
from datetime import UTC, datetime

import pytest

from duly import Duly, StoreError, StoreUnavailable, current
from tests.servers.cable import Cable
from tests.servers.kinds import BEHIND_PGBOUNCER
from tests.servers.postgres import PostgresServer
from tests.servers.processes import is_running, wait_until
from tests.worker import shop as shop_module
from tests.worker.trees import Tree

pytestmark = pytest.mark.process
on_the_newest = pytest.mark.stores(BEHIND_PGBOUNCER.name if BEHIND_PGBOUNCER else "postgres")
"""One server will do: what workers make of an outage is the same for every version."""


@pytest.fixture
def url(private_postgres: PostgresServer) -> str:
    """A database on a server that may be killed."""
    return private_postgres.create_database()


@pytest.fixture
def shop(url: str):
    """The application that the children import, on that database."""
    shop_module.app.use_url(url)
    assert shop_module.app.runs.list() == []
    yield shop_module
    shop_module.app.close()


def wait_until_noticed(tree: Tree) -> None:
    """Wait until the tree's children have met the outage."""
    before = tree.log.read_text().count("failed, retrying")
    wait_until(
        lambda: tree.log.read_text().count("failed, retrying") > before + 3,
        seconds=30,
        what=f"somebody notices: {tree.log.read_text()}",
    )


def test_a_crash_of_the_server_shorter_than_the_lease_costs_no_attempt(
    shop, notes, url, private_postgres, tmp_path
):
    with Tree(url, tmp_path, processes=2, lease=12.0, beat=1.0).ready() as tree:
        tasks = (shop.linger, shop.linger_async, shop.linger_hold, shop.linger_process)
        lingering = [task.enqueue(*notes.arguments(n)) for n, task in enumerate(tasks)]
        notes.wait_for_starts(len(tasks))
        quick = shop.app.enqueue_many(shop.quick.call(n) for n in range(200))
        children = tree.children()

        private_postgres.kill9()
        wait_until_noticed(tree)
        assert "works again" not in tree.log.read_text()
        # Half of the bodies end while nobody can record it.
        notes.open_gate()
        wait_until(lambda: len(notes.ends()) == len(tasks), seconds=20, what="the bodies end")
        with pytest.raises(StoreUnavailable):
            shop.quick.enqueue(1)
        private_postgres.start()

        assert [run.result(timeout=40) for run in lingering] == [0, 1, 2, 3]
        wait_until(
            lambda: set(shop.app.store.get_states([r.id for r in quick]).values()) == {"succeeded"},
            seconds=40,
            what="nothing is lost",
        )
        assert tree.children() == children
        assert tree.keeper.poll() is None
        assert shop.quick.enqueue(5).result(timeout=20) == 5

    for run in lingering:
        assert [attempt.outcome for attempt in run.attempts()] == ["returned"]
        assert (run.record.attempt, run.record.claim_number, run.record.crashes) == (1, 1, 0)
    records = [shop.app.runs.get(run.id).record for run in quick]
    assert {(record.attempt, record.crashes) for record in records} == {(1, 0)}
    assert len(notes.starts()) == len(tasks)


@on_the_newest
def test_an_outage_longer_than_the_lease_kills_nobody_and_loses_nothing(
    shop, notes, url, private_postgres, tmp_path
):
    lease = 1.5
    with (
        Tree(url, tmp_path, lease=lease, beat=0.4).ready() as first,
        Tree(url, tmp_path, lease=lease, beat=0.4).ready() as second,
    ):
        runs = [shop.linger.enqueue(*notes.arguments(n)) for n in range(6)]
        notes.wait_for_starts(6)
        pids = [*first.children(), *second.children()]

        private_postgres.stop("immediate")
        gone_at = time.monotonic()
        wait_until(
            lambda: time.monotonic() - gone_at > 2 * lease, seconds=30, what="two leases pass"
        )
        assert all(map(is_running, pids))
        private_postgres.start()
        notes.open_gate()

        assert [run.result(timeout=40) for run in runs] == list(range(6))
        assert all(map(is_running, pids))
        assert first.keeper.poll() is None
        assert second.keeper.poll() is None

    # A stalled store stalls the watchers too, so nobody was taken for dead.
    assert [[a.outcome for a in run.attempts()] for run in runs] == [["returned"]] * 6
    assert len(notes.starts()) == 6


@on_the_newest
def test_a_tree_that_is_stopped_while_the_server_is_away_ends_and_loses_nothing(
    shop, notes, url, private_postgres, tmp_path
):
    with Tree(url, tmp_path, grace=0.5).ready() as tree:
        run = shop.linger.enqueue(*notes.arguments(4))
        notes.wait_for_starts(1)
        private_postgres.kill9()
        wait_until_noticed(tree)

        tree.terminate()
        status = tree.ended(seconds=40)
    private_postgres.start()
    notes.open_gate()
    with shop.app.worker():
        assert run.result(timeout=40) == 4

    assert status == 0, tree.log.read_text()


@on_the_newest
def test_a_worker_behind_a_cut_network_starts_and_records_nothing_until_it_is_back(
    shop, notes, url, private_postgres, tmp_path
):
    def finished(*runs) -> bool:
        states = shop.app.store.get_states([run.id for run in runs])
        return set(states.values()) == {"succeeded"}

    with Cable("127.0.0.1", private_postgres.port) as cable:
        far_url = url.replace(f":{private_postgres.port}/", f":{cable.port}/")
        # Longer than a beat waits for its answer, so that the far side is not ended meanwhile.
        lease, beat = 6.0, 1.0
        with Tree(far_url, tmp_path, lease=lease, beat=beat).ready() as far:
            run = shop.linger.enqueue(*notes.arguments(3))
            notes.wait_for_starts(1)
            (cut_off,) = far.children()
            with shop.app.worker(lease=lease, beat=beat):
                cable.cut()
                first, second = notes.wait_for_starts(2)
                others = [shop.linger.enqueue(notes.log, "/", n) for n in range(20, 40)]
                wait_until(lambda: finished(*others), seconds=30, what="the near side works on")
                # Both bodies end; the one that is cut off has something to say, and may not.
                notes.open_gate()
                wait_until(lambda: finished(run), seconds=30, what="the near side records it")
                wait_until(lambda: len(notes.ends(3)) == 2, seconds=30, what="both bodies end")
                cable.mend()
                wait_until(
                    lambda: far.workers() not in ([], [cut_off]),
                    seconds=40,
                    what=f"the far side begins anew: {far.log.read_text()}",
                )
            assert shop.quick.enqueue(5).result(timeout=30) == 5
            assert far.keeper.poll() is None

    assert (first.pid, first.fence, second.fence) == (cut_off, 1, 2)
    assert cut_off not in {line.pid for line in notes.lines() if line.number >= 20}
    assert [attempt.outcome for attempt in run.attempts()] == ["lost", "returned"]
    assert run.refresh().record.claim_number == 2


@on_the_newest
def test_an_embedded_worker_goes_on_after_the_server_came_back(url, private_postgres):
    app = Duly(url)
    entered, go_on = threading.Event(), threading.Event()

    @app.task(name="body")
    def body(number: int) -> int:
        if number == 0:
            entered.set()
            go_on.wait(40)
        current().log.info("ending %s", number)
        return number

    @app.task(name="coroutine")
    async def coroutine() -> str:
        await asyncio.to_thread(go_on.wait, 40)
        return "done"

    @app.every(name="tick", seconds=1)
    async def tick() -> None: ...

    with app.worker(concurrency=2, lease=12.0, beat=1.0):
        first, second = body.enqueue(0), coroutine.enqueue()
        assert entered.wait(20)
        private_postgres.kill9()
        go_on.set()
        with pytest.raises(StoreError):
            app.runs.list()
        private_postgres.start()
        came_back = datetime.now(UTC)

        assert first.result(timeout=40) == 0
        assert second.result(timeout=40) == "done"
        assert body.enqueue(1).result(timeout=20) == 1
        # Schedules continue too, and every instant that came due meanwhile is on record.
        wait_until(
            lambda: any(
                firing.instant > came_back and firing.run_id
                for firing in app.schedules.firings(tick.name)
            ),
            seconds=20,
            what="the schedule fires again",
        )

    assert [line.message for line in first.logs()] == ["ending 0"]
    assert (first.record.attempt, first.record.claim_number) == (1, 1)
    app.close()
