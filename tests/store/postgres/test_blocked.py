"""An op that waits too long for a lock, in a commit that it shares with other ops."""

import threading
from contextlib import closing
from functools import partial

import psycopg
import pytest

from duly import faultpoints
from duly.connections import execute_dialogue
from duly.errors import StoreBusy
from duly.store.ops.locks import AcquireLock
from duly.store.ops.operators import PauseQueue
from duly.store.ops.runs import Settled
from duly.store.postgres import write_paths
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import enqueue_and_claim, fail, key, order, redrive, register
from tests.store.postgres.verbs import InBackground

pytestmark = pytest.mark.stores("postgres")
SOON = 30.0


@pytest.fixture
def store(store_url: str, monkeypatch: pytest.MonkeyPatch):
    """A store whose writes wait for locks for a moment only."""
    monkeypatch.setattr(write_paths, "WORK", {**write_paths.WORK, "lock_timeout": "200ms"})
    store = open_store(store_url)
    yield store
    store.close()


def test_only_the_op_that_waits_for_a_lock_fails(store, store_url):
    outcomes: dict[str, object] = {}
    all_done, is_leading, may_lead = threading.Event(), threading.Event(), threading.Event()

    def note(name: str):
        def done(outcome: object) -> None:
            outcomes[name] = outcome
            if len(outcomes) == 5:
                all_done.set()

        return done

    def wait() -> None:
        is_leading.set()
        assert may_lead.wait(SOON)

    pause = PauseQueue("default", True, "me", "")
    blocked, free = (AcquireLock(name, "me", "me", 1_000_000) for name in ("held", "free"))
    with psycopg.connect(store_url) as holder:
        holder.execute("INSERT INTO duly_locks VALUES ('held', NULL, 'h', 1, now())")
        holder.commit()
        holder.execute("SELECT 1 FROM duly_locks WHERE name = 'held' FOR UPDATE")
        # Ops that are submitted during another commit share the next one.
        faultpoints.arm("operate.before_write", wait)
        leader = threading.Thread(target=store.apply, args=([pause],))
        leader.start()
        assert is_leading.wait(SOON)
        for name, op in (("a", free), ("b", blocked), ("c", pause), ("d", blocked), ("e", pause)):
            store.submit([op._replace()], note(name))
        faultpoints.disarm()
        may_lead.set()
        assert all_done.wait(SOON)
        leader.join(SOON)
        holder.rollback()

    failed = {name for name, outcome in outcomes.items() if isinstance(outcome, StoreBusy)}
    assert failed == {"b", "d"}
    assert all(isinstance(outcomes[name], list) for name in ("a", "c", "e"))


def test_a_retry_whose_key_another_transaction_is_taking_gives_up_soon(
    store, store_url, monkeypatch: pytest.MonkeyPatch
):
    register(store)
    failed = enqueue_and_claim(store, key=key("k", active_only=True))
    assert fail(store, failed) is Settled.DONE
    monkeypatch.setattr(write_paths, "WORK", {**write_paths.WORK, "lock_timeout": "10min"})

    with closing(open_store(store_url)) as patient, psycopg.connect(store_url) as caller:
        wanted = order(key=key("k", active_only=True))
        execute_dialogue(caller, partial(patient.enqueue_on_connection, wanted), patient.wake)
        retrying = InBackground(lambda: redrive(patient, failed.run_id))
        with pytest.raises(StoreBusy):
            retrying.answer()
        caller.rollback()

        assert redrive(patient, failed.run_id).done
