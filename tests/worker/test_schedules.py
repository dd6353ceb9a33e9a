"""Schedules fire inside workers, on time, and keep firing whatever happens."""

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from duly import Duly
from duly.worker.services.maintenance import Scheduler
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables


def later(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def test_an_idle_worker_starts_a_run_soon_after_its_instant(app: Duly):
    started: list[float] = []

    @app.task(name="tell")
    async def tell(due: float) -> None:
        started.append(time.time() - due)

    with app.worker():
        for n in range(20):
            due = later(0.3 + n * 0.07)
            app.schedules.add(f"tell:{n}", tell, at=due, args=(due.timestamp(),))
        wait_until(lambda: len(started) == 20, seconds=20, what="all have started")

    assert min(started) >= -0.01
    assert max(started) < 1


def test_a_long_body_delays_no_other_schedule(app):
    started: dict[str, float] = {}
    release = threading.Event()

    @app.task(name="slow")
    def slow() -> None:
        release.wait(20)

    @app.task(name="quick")
    async def quick(due: float) -> None:
        started["quick"] = time.time() - due

    with app.worker(concurrency=2):
        due = later(0.8)
        app.schedules.add("slow", slow, at=later(0.1))
        app.schedules.add("quick", quick, at=due, args=(due.timestamp(),))
        wait_until(lambda: "quick" in started, seconds=20, what="the quick one has started")
        release.set()

    assert started["quick"] < 1


def test_a_failing_task_fires_at_every_instant_with_its_retries(app):
    calls: list[float] = []

    @app.every(name="broken", seconds=1, retries=1, overlap="allow")
    async def broken() -> None:
        calls.append(time.time())
        raise RuntimeError("always")

    def fired() -> list[str]:
        return [f.outcome for f in app.schedules.firings(broken.name)]

    with app.worker():
        wait_until(lambda: len(fired()) >= 4, seconds=30, what="four instants have come")

    assert app.schedules.get(broken.name).state == "active"
    assert len(calls) >= 4


def test_schedulers_in_many_threads_fire_each_instant_once(app, store_url):
    """As S1 of the article this replaces: 4 processes and 20 due tasks."""

    @app.task(name="note")
    async def note(n: int) -> None: ...

    others = [Duly(store_url) for _ in range(3)]
    for trial in range(5):
        for n in range(20):
            app.schedules.add(f"s{trial}:{n}", note, at=later(-1), args=(n,))
        ready = threading.Barrier(4)

        def look(each: Duly, ready: threading.Barrier = ready) -> None:
            scheduler = Scheduler(each.store)
            ready.wait()
            for _ in range(4):
                scheduler.tick()

        threads = [threading.Thread(target=look, args=(each,)) for each in (app, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(app.runs.list(limit=200)) == 20 * (trial + 1)
    for other in others:
        other.close()


def test_a_function_scheduled_in_one_process_runs_in_another_that_registers_it(app, store_url):
    scheduling = Duly(store_url)

    @scheduling.task(name="shared:task")
    async def here(n: int) -> None:
        raise AssertionError("this process has no worker")

    scheduling.schedules.add("shared", here, at=later(0.2), args=(5,))
    got: list[int] = []

    @app.task(name="shared:task")
    async def there(n: int) -> int:
        got.append(n)
        return n

    with app.worker():
        wait_until(lambda: got == [5], seconds=20, what="it ran")
    scheduling.close()


def test_a_schedule_of_a_task_that_nobody_registers_waits_and_says_so(app, store_url):
    elsewhere = Duly(store_url)

    @elsewhere.task(name="gone:task")
    async def task() -> None: ...

    elsewhere.schedules.add("gone", task, at=later(-1))
    with app.worker():
        wait_until(lambda: len(app.schedules.firings("gone")) == 1, seconds=20, what="it fired")
        assert not app.schedules.get("gone").is_registered
        (run,) = app.runs.list()
        assert run.state == "queued"
    with elsewhere.worker():
        run.result(timeout=20)
    elsewhere.close()


@pytest.mark.parametrize("misfire", ["latest", "skip", "all"])
def test_an_hour_of_downtime_follows_the_policy_and_is_in_the_ledger(app, misfire):
    ran: list[int] = []

    @app.task(name="note")
    async def note() -> None:
        ran.append(1)

    app.schedules.add("note", note, cron="*/10 * * * *", misfire=misfire)
    hour_ago = int((time.time() - 3600) * 1e6)
    _move_back(app, "note", hour_ago)

    def is_settled() -> bool:
        states = {f.outcome for f in app.schedules.firings("note")}
        return bool(states) and "waiting" not in states

    with app.worker():
        wait_until(is_settled, seconds=30, what="every instant is accounted for")
    app.worker().drain(timeout=30)

    outcomes = [f.outcome for f in app.schedules.firings("note")]
    assert 6 <= len(outcomes) <= 7
    fired = sum(outcome != "skipped" for outcome in outcomes)
    assert fired == len(ran)
    assert fired == {"latest": 1, "skip": 0, "all": len(outcomes)}[misfire] or (
        # An instant may have come just now.
        misfire == "skip" and fired == 1
    )


def _move_back(app: Duly, name: str, to: int) -> None:
    """Let a schedule look as if nobody had looked at it since then."""
    when = f"{to}" if app.url.startswith("sqlite") else f"duly_time({to})"
    with opened_tables(app.url) as tables:
        tables.execute(
            f"UPDATE duly_schedules SET next_at = {when}, look_at = {when}"  # noqa: S608
            f" WHERE name = '{name}'"
        )
