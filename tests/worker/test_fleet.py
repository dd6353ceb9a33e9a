"""Several workers on one server: an enqueue wakes one of them, and a lost hint loses no run."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from duly import Duly
from duly.store.ops.runs import ClaimRuns, Settle
from duly.store.postgres import claim
from duly.worker.embedded_worker import EmbeddedWorker
from duly.worker.services import hint_handler
from duly.worker.services.hint_handler import HintHandler
from tests.servers.processes import wait_until
from tests.worker.waits import never_poll, wait_until_it_only_listens

pytestmark = pytest.mark.stores("postgres")
__all__ = ["never_poll"]  # A fixture.

SECONDS = 20


class Member:
    """A worker with connections of its own, as in a process of its own."""

    def __init__(self, url: str, define: Callable[[Duly], Any], **options: Any) -> None:
        self.app = Duly(url)
        self.task = define(self.app)
        self.asked: Counter[str] = Counter()
        self._count_statements()
        self.worker: EmbeddedWorker = self.app.worker(**options)

    @property
    def hinted(self) -> HintHandler:
        inner = self.worker._worker
        assert inner is not None
        return inner._hinted

    def _count_statements(self) -> None:
        store: Any = self.app.store
        apply, peek = store.apply, store.peek

        def counted_apply(ops: Any) -> Any:
            self.asked["claims"] += sum(isinstance(op, ClaimRuns) for op in ops)
            self.asked["settles"] += any(isinstance(op, Settle) for op in ops)
            return apply(ops)

        def counted_peek(carried: Any = ()) -> Any:
            self.asked["peeks"] += 1
            return peek(carried)

        store.apply, store.peek = counted_apply, counted_peek


@contextmanager
def fleet(
    url: str, define: Callable[[Duly], Any], *options: dict[str, Any]
) -> Iterator[list[Member]]:
    """Start workers that know each other."""
    with ExitStack() as stack:
        members = []
        for chosen in options:
            member = Member(url, define, **chosen)
            stack.callback(member.app.close)
            stack.enter_context(member.worker)
            members.append(member)
        for member in members:
            member.hinted.reader.tick()
        yield members


def wait_until_all_only_listen(members: list[Member]) -> None:
    for member in members:
        wait_until_it_only_listens(member.worker)


def define_echo(app: Duly) -> Any:
    @app.task(name="echo")
    def echo(number: int) -> int:
        return number

    return echo


def deafen(member: Member) -> None:
    """Let hints reach a worker no more, as if its process was frozen."""
    listener = member.app.store._here().writers.hints._listeners[0]  # type: ignore[attr-defined]
    listener._ears = listener._ears._replace(woken=lambda: None, hinted=lambda _said: None)


@pytest.mark.usefixtures("never_poll")
def test_an_enqueue_costs_four_statements_with_eight_idle_workers(
    app: Duly, store_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Its insert, a NOTIFY unless the insert carries that, one claim, and the end of the run."""
    # The first in line is never too slow here, however busy the machine is; test_hinted has a clock
    # for those that are.
    monkeypatch.setattr(hint_handler, "_DELAYS", (0.0, *[10.0 * SECONDS] * 6))
    monkeypatch.setattr(hint_handler, "_ANNOUNCE_SECONDS", 0.0)
    echo = define_echo(app)
    with fleet(store_url, define_echo, *[{"concurrency": 2}] * 8) as members:
        wait_until_all_only_listen(members)
        for member in members:
            member.asked.clear()
        for number in range(20):
            assert echo.enqueue(number).result(timeout=SECONDS) == number
            wait_until(
                lambda: not any(member.hinted._pending for member in members),
                seconds=SECONDS,
                what="no other worker means to look for it",
            )
        asked = sum((member.asked for member in members), Counter())

    assert asked == {"claims": 20, "settles": 20}


@pytest.mark.usefixtures("never_poll")
def test_a_full_worker_leaves_runs_to_others(app: Duly, store_url: str):
    echo = define_echo(app)
    free = threading.Event()

    def define(other: Duly) -> Any:
        @other.task(name="block", queue="own")
        def block() -> None:
            free.wait(SECONDS)

        define_echo(other)
        return block

    options = {"concurrency": 1, "queues": "default,own"}, {"concurrency": 1, "queues": "default"}
    with fleet(store_url, define, *options) as members:
        wait_until_all_only_listen(members)
        full = members[0]
        running = full.task.enqueue()
        wait_until(lambda: running.refresh().state == "running", seconds=SECONDS, what="it is full")
        for number in range(10):
            assert echo.enqueue(number).result(timeout=SECONDS) == number
        free.set()
        running.result(timeout=SECONDS)


@pytest.mark.usefixtures("never_poll")
def test_a_worker_looks_after_its_body_if_a_hint_came_while_it_was_full(app: Duly, store_url: str):
    echo = define_echo(app)
    free = threading.Event()

    def define(other: Duly) -> Any:
        @other.task(name="block")
        def block() -> None:
            free.wait(SECONDS)

        define_echo(other)
        return block

    with fleet(store_url, define, {"concurrency": 1}) as members:
        wait_until_all_only_listen(members)
        (only,) = members
        running = only.task.enqueue()
        wait_until(lambda: running.refresh().state == "running", seconds=SECONDS, what="it is full")
        run = echo.enqueue(7)
        wait_until(
            only.worker._worker._claimer.may_find_more,  # type: ignore[union-attr]
            seconds=SECONDS,
            what="it has heard the hint",
        )
        free.set()

        assert run.result(timeout=SECONDS) == 7


@pytest.mark.usefixtures("never_poll")
def test_a_worker_that_does_not_answer_delays_no_run_until_the_poll(app: Duly, store_url: str):
    echo = define_echo(app)
    with fleet(store_url, define_echo, *[{"concurrency": 2}] * 4) as members:
        wait_until_all_only_listen(members)
        for member in members[:2]:
            deafen(member)
        for number in range(20):
            assert echo.enqueue(number).result(timeout=SECONDS) == number


@pytest.mark.usefixtures("never_poll")
def test_a_worker_of_other_queues_delays_no_run(app: Duly, store_url: str):
    echo = define_echo(app)
    options = [{"queues": "elsewhere"}] * 3 + [{"queues": "default"}]
    with fleet(store_url, define_echo, *options) as members:
        wait_until_all_only_listen(members)
        others = members[:-1]
        for other in others:
            other.asked.clear()
        for number in range(10):
            assert echo.enqueue(number).result(timeout=SECONDS) == number

        assert sum((other.asked for other in others), Counter()) == {}


@pytest.mark.usefixtures("never_poll")
def test_a_burst_reaches_all_workers_that_have_room_for_it(app: Duly, store_url: str):
    met = threading.Barrier(6)

    def define(other: Duly) -> Any:
        @other.task(name="meet", on_crash="hold")
        def meet() -> None:
            met.wait(SECONDS)

        return meet

    meet = define(app)
    with fleet(store_url, define, *[{"concurrency": 2}] * 3) as members:
        wait_until_all_only_listen(members)
        for run in app.enqueue_many([meet.call() for _ in range(6)]):
            run.result(timeout=2 * SECONDS)


def test_a_run_whose_hint_is_lost_is_found_by_the_poll(app: Duly, store_url: str):
    echo = define_echo(app)
    with fleet(store_url, define_echo, {}, {}) as members:
        for member in members:
            deafen(member)

        assert echo.enqueue(7).result(timeout=SECONDS) == 7


@pytest.mark.usefixtures("never_poll")
@pytest.mark.parametrize("text", ["", "from an older version", '{"v":99,"ready":[]}'])
def test_a_notification_that_is_not_understood_wakes_every_worker(
    app: Duly, store_url: str, text: str
):
    echo = define_echo(app)
    with (
        psycopg.connect(store_url) as connection,
        fleet(store_url, define_echo, {}, {}) as members,
    ):
        wait_until_all_only_listen(members)
        for member in members:
            member.asked.clear()
        run = echo.using(connection=connection, wake=False).enqueue(7)
        connection.execute("SELECT pg_notify(duly_channel(), %s)", [text])
        connection.commit()

        assert run.result(timeout=SECONDS) == 7
        for member in members:
            wait_until(lambda one=member: one.asked["claims"] > 0, seconds=SECONDS, what="it looks")


@pytest.mark.usefixtures("never_poll")
def test_an_announcement_that_is_refused_costs_no_claim(
    app: Duly, store_url: str, monkeypatch: pytest.MonkeyPatch
):
    echo = define_echo(app)
    monkeypatch.setattr(claim, "_ANNOUNCED", "no_such_function(%(announcement)s)")
    with fleet(store_url, define_echo, {}, {}) as members:
        wait_until_all_only_listen(members)
        for number in range(5):
            assert echo.enqueue(number).result(timeout=SECONDS) == number


@pytest.mark.usefixtures("never_poll")
@pytest.mark.parametrize("limit", ["task", "key", "queue"])
def test_a_hint_about_a_limited_run_starts_it(app: Duly, store_url: str, limit: str):
    def define(other: Duly) -> Any:
        options: dict[str, Any] = {}
        if limit != "queue":
            options = {"limit": 1} if limit == "task" else {"limit": 1, "limit_key": str}

        @other.task(name="limited", **options)
        def limited(number: int) -> int:
            return number

        return limited

    limited = define(app)
    if limit == "queue":
        app.queues.limit("default", 1)
    with fleet(store_url, define, {}, {}) as members:
        wait_until_all_only_listen(members)
        for number in range(5):
            assert limited.enqueue(number).result(timeout=SECONDS) == number
