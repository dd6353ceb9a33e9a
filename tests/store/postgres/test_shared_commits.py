"""Ops of several callers that share a commit, although some of them need their own transaction."""

import threading

import psycopg
import pytest

from duly import faultpoints
from duly.errors import StoreBusy
from duly.store.ops.locks import AcquireLock, ReleaseLock
from duly.store.ops.operators import PauseQueue
from duly.store.ops.upkeep import Tick
from duly.store.postgres import write_paths
from duly.store.store_factory import open_store

pytestmark = pytest.mark.stores("postgres")
SOON = 30.0


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch):
    """A store whose writes wait for locks for a moment only."""
    monkeypatch.setattr(write_paths, "WORK", {**write_paths.WORK, "lock_timeout": "200ms"})
    store = open_store(store_url)
    yield store
    store.close()


def test_ops_before_a_tick_are_written_once_when_an_op_after_it_fails(store, store_url):
    outcomes: dict[str, object] = {}
    all_done, is_leading, may_lead = threading.Event(), threading.Event(), threading.Event()

    def note(name: str):
        def done(outcome: object) -> None:
            outcomes[name] = outcome
            if len(outcomes) == 3:
                all_done.set()

        return done

    def wait() -> None:
        is_leading.set()
        assert may_lead.wait(SOON)

    locked = store.do(AcquireLock("mine", "me", "me", 60_000_000))
    release = ReleaseLock("mine", "me", locked.fence)
    blocked = AcquireLock("held", "me", "me", 1_000_000)
    pause = PauseQueue("default", True, "me", "")
    with psycopg.connect(store_url) as holder:
        holder.execute("INSERT INTO duly_locks VALUES ('held', NULL, 'h', 1, now())")
        holder.commit()
        holder.execute("SELECT 1 FROM duly_locks WHERE name = 'held' FOR UPDATE")
        faultpoints.arm("operate.before_write", wait)
        leader = threading.Thread(target=store.apply, args=([pause],))
        leader.start()
        assert is_leading.wait(SOON)
        for name, op in (("release", release), ("tick", Tick(10)), ("blocked", blocked)):
            store.submit([op], note(name))
        faultpoints.disarm()
        may_lead.set()
        assert all_done.wait(SOON)
        leader.join(SOON)
        holder.rollback()

    assert isinstance(outcomes["blocked"], StoreBusy)
    assert outcomes["release"] == [True]
    with psycopg.connect(store_url) as reader:
        ((acts,),) = reader.execute("SELECT count(*) FROM duly_acts").fetchall()
    assert acts == 1
