"""PostgreSQL only: the network breaks at each point of each verb, and nothing is doubled.

A proxy counts the pieces that the client sends, and cuts the connection at the n-th piece. The cut
is made before the server sees the piece, or after the server has answered it, when the client
cannot know the outcome, or only on the client's side. Each test repeats its verb with n = 1, 2, 3…
until the verb ends before the cut.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from duly.errors import StoreUnavailable
from duly.store.ops.runs import Settled
from duly.store.ops.updates import AddLogs
from duly.store.store_factory import open_store
from tests.servers.cutting_proxy import (
    COMMITTED,
    HALF_OPEN,
    UNANSWERED,
    UNSEEN,
    CuttingProxy,
    cut_everywhere,
    nothing,
    proxy_before,
)
from tests.store.conformance.verbs import (
    another_try,
    cancel,
    claim,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_many,
    enqueue_one,
    hand_back_op,
    listed_ids,
    order,
    outcomes_of,
    recover,
    redrive,
    register,
    run_of,
    settle,
    success,
)


@pytest.fixture(autouse=True)
def _long_wait_for_old_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a server process may need longer than usual to end."""
    monkeypatch.setattr("duly.store.postgres.reconnecting_connection.OLD_SESSION_SECONDS", 30.0)


@pytest.fixture
def proxied(url: str) -> Iterator[tuple[CuttingProxy, str]]:
    """A proxy in front of the server, and the URL of the database through it."""
    with proxy_before(url) as proxied:
        yield proxied


@pytest.fixture
def proxy(proxied: tuple[CuttingProxy, str]) -> CuttingProxy:
    """A proxy in front of the server."""
    return proxied[0]


@pytest.fixture
def store(proxied: tuple[CuttingProxy, str]) -> Iterator[Any]:
    """A store that sends every connection through the proxy."""
    with opened_through(proxied[1]) as store:
        yield store


@contextmanager
def opened_through(url: str) -> Iterator[Any]:
    """Open a store at the URL of a proxy, with a live worker."""
    with closing(open_store(url)) as store:
        # Hints are sent by a thread of their own, and would be counted among the verb's pieces.
        store._here().writers.hints._notifier.poke = lambda *_: None
        register(store)
        yield store


@pytest.fixture
def reader(url: str) -> Iterator[Any]:
    """The same store without the proxy, to read the committed rows."""
    with closing(open_store(url)) as reader:
        yield reader


@pytest.fixture(params=[UNSEEN, UNANSWERED, HALF_OPEN])
def sweep(request: pytest.FixtureRequest, proxy: CuttingProxy) -> Callable[..., int]:
    """Repeat an action with a cut at each of its points; return the number of cuts."""
    return partial(cut_everywhere, proxy, request.param)


def execute(url: str, sql: str) -> None:
    """Run a statement without the store."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql)


@pytest.mark.parametrize("options", [{}, {"delay_seconds": 60, "tags": {"a": "b"}}])
def test_an_enqueue_is_accepted_once(store, reader, sweep, options):
    def act(_):
        op = order(**options)
        before = len(listed_ids(reader))
        assert store.do(op).new
        assert len(listed_ids(reader)) == before + 1
        assert run_of(reader, op.run_id).tags == op.tags

    assert sweep(nothing, act) >= 1


def test_a_run_that_ended_before_the_reply_to_its_enqueue_is_not_accepted_again(
    store, reader, proxy, monkeypatch
):
    # The same statement each time, so that it is prepared when its answer is cut.
    monkeypatch.setattr(store._here().writers.hints, "may_piggyback", lambda: False)
    enqueue_and_claim(store)

    def settle_meanwhile():
        proxy.before_connecting = nothing
        settle(reader, success(*claim(reader)))

    proxy.before_connecting = settle_meanwhile
    proxy.cut_next_answer()
    run_id = enqueue_one(store)

    assert run_of(reader, run_id).state == "succeeded"
    assert claim(reader) == []


def test_a_batch_of_enqueues_is_accepted_once(store, reader, sweep):
    def act(_):
        before = len(listed_ids(reader))
        enqueue_many(store, 5)
        assert len(listed_ids(reader)) == before + 5

    assert sweep(nothing, act) >= 1


def test_a_keyed_enqueue_is_accepted_once_and_as_new(store, reader, sweep):
    def act(_):
        op = order(key=order().run_id)
        before = len(listed_ids(reader))
        assert store.do(op).new
        assert store.do(order(key=op.key)).run_id == op.run_id
        assert len(listed_ids(reader)) == before + 1

    assert sweep(nothing, act) >= 5


def test_a_claim_returns_all_runs_that_it_took(store, reader, sweep):
    def arrange():
        return enqueue_many(store, 3)

    def act(wanted):
        taken = claim(store)
        assert sorted(found.run_id for found in taken) == sorted(wanted)
        for found in taken:
            run = run_of(reader, found.run_id)
            assert (run.state, run.claim_number) == ("running", found.claim_number)

    assert sweep(arrange, act) >= 1


def test_a_settle_is_written_once(store, reader, sweep):
    def arrange():
        return enqueue_and_claim(store)

    def act(held):
        assert settle(store, success(held, "1")) is Settled.DONE
        assert run_of(reader, held.run_id).result == "1"
        assert outcomes_of(reader, held.run_id) == [(1, "returned")]

    assert sweep(arrange, act) >= 1


def test_settles_of_several_verdicts_are_written_once(store, reader, sweep):
    def arrange():
        enqueue_many(store, 3)
        return claim(store)

    def act(held):
        one, two, three = held
        answers = store.apply([success(one), another_try(two, 60.0), another_try(three, 60.0)])
        assert answers == [Settled.DONE] * 3
        assert outcomes_of(reader, two.run_id) == [(1, "raised")]
        assert run_of(reader, three.run_id).attempt == 2

    assert sweep(arrange, act) >= 1


def test_a_recovery_is_done_once(url, store, reader, sweep):
    def arrange():
        return enqueue_and_claim(store)

    def act(held):
        assert recover(store) == [held.run_id]
        assert run_of(reader, held.run_id).crashes == 1
        assert outcomes_of(reader, held.run_id) == [(1, "lost")]
        cancel(reader, held.run_id)
        execute(url, "UPDATE duly_workers SET state = 'live', stopped_at = NULL")

    assert sweep(arrange, act) >= 3


def test_operator_actions_are_done_and_recorded_once(store, reader, sweep):
    def arrange():
        return enqueue_and_fail(store), enqueue_one(store)

    def act(run_ids):
        dead, queued = run_ids
        assert redrive(store, dead).done
        assert cancel(store, queued) == "cancelled"
        assert run_of(reader, dead).generation == 2
        assert [len(reader.list_audit_entries(run_id, 10)) for run_id in run_ids] == [1, 1]

    assert sweep(arrange, act) >= 5


def test_log_lines_are_written_once(store, reader, sweep):
    def arrange():
        return enqueue_and_claim(store)

    def act(held):
        lines = ((1, "info", "one"), (2, "info", "two"))
        assert store.apply([AddLogs(held.run_id, held.claim_number, lines)]) == [True]
        assert [line.message for line in reader.list_logs(held.run_id, 10)] == ["one", "two"]

    assert sweep(arrange, act) >= 3


def test_log_lines_are_written_once_if_the_answer_to_their_commit_is_lost(store, reader, proxy):
    held = enqueue_and_claim(store)
    lines = ((1, "info", "one"), (2, "info", "two"))
    proxy.cut_next_answer(containing=COMMITTED)

    assert store.apply([AddLogs(held.run_id, held.claim_number, lines)]) == [True]

    assert [line.message for line in reader.list_logs(held.run_id, 10)] == ["one", "two"]


def test_reads_return_their_answers(store, sweep):
    def arrange():
        return enqueue_one(store)

    def act(run_id):
        assert store.get_run(run_id).state == "queued"
        assert store.get_states([run_id]) == {run_id: "queued"}

    assert sweep(arrange, act) >= 1


def test_a_task_transaction_commits_as_a_whole_or_not_at_all_and_reports_it(
    url, store, reader, sweep
):
    """A body cannot be repeated, so a loss may raise an error. Then nothing was committed."""
    execute(url, "CREATE TABLE ledger (run uuid)")
    counted = "SELECT count(*) FROM ledger WHERE run = %(run)s"

    def arrange():
        return enqueue_and_claim(store)

    def act(held):
        section = store.task_transaction()
        try:
            section.connection.execute("INSERT INTO ledger VALUES (%s)", [held.run_id])
            done = section.settle_and_commit(success(held))
        except (psycopg.Error, StoreUnavailable):
            section.rollback()
            written, state = 0, "running"
        else:
            assert done is Settled.DONE
            written, state = 1, "succeeded"
        assert reader._read(counted, {"run": held.run_id}) == [(written,)]
        assert run_of(reader, held.run_id).state == state
        if state == "running":
            settle(reader, hand_back_op(held))
            cancel(reader, held.run_id)

    assert sweep(arrange, act) >= 3


def test_runs_of_a_claim_before_an_outage_are_found_after_it(store, reader, proxy):
    enqueue_and_claim(store)
    wanted = enqueue_many(store, 2)
    proxy.cut_next_answer()
    proxy.is_down = True
    with pytest.raises(StoreUnavailable):
        claim(store)
    states = {run_of(reader, run_id).state for run_id in wanted}
    proxy.is_down = False

    found = claim(store)

    assert states == {"running"}
    assert sorted(claimed.run_id for claimed in found) == sorted(wanted)
    assert claim(store) == []
