"""Periodic and one-time tasks, without an application where it does not matter."""

import asyncio
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from duly import BadOption
from duly.compat.fastapi_taskflow import TaskManager
from duly.errors import StoreUnavailable
from duly.store.due_schedules import fire_due
from duly.store.ops.schedules import FireSchedules
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0
LATER = datetime(2040, 1, 1, tzinfo=UTC)


def run_all(manager: TaskManager) -> None:
    manager.duly.worker().drain(timeout=SOON)


def test_every_instant_has_one_run_regardless_of_the_number_of_processes(manager_of):
    """Occasional errors of the store lose no instant. Two instants take two seconds."""
    managers = [manager_of(max_size=1) for _ in range(2)]
    ran = []
    for manager in managers:

        @manager.schedule(every=1, name="tick")
        async def tick() -> None:
            ran.append(1)

        apply, looks = manager.duly.store.apply, []

        def failing(ops, apply=apply, looks=looks):
            if any(isinstance(op, FireSchedules) for op in ops):
                looks.append(1)
                if len(looks) % 2:
                    raise StoreUnavailable("away for a moment")
            return apply(ops)

        manager.duly.store.apply = failing
    first, second = managers
    with serving(first), serving(second):
        wait_until(lambda: len(ran) >= 2, seconds=SOON, what="the schedule fires")
    firings = first.duly.schedules.firings("tick")
    runs = first.duly.runs.list()
    instants = sorted(firing.instant for firing in firings)
    assert {later - earlier for earlier, later in pairwise(instants)} == {timedelta(seconds=1)}
    assert {firing.run_id for firing in firings if firing.run_id} == {run.id for run in runs}
    assert {first.store.get(run.id).source for run in runs} == {"scheduled"}


def test_an_instant_has_a_run_even_if_the_previous_run_is_live(harness):
    manager = TaskManager(duly=harness.app)
    ran = []

    @manager.schedule(every=60, name="tick")
    def tick() -> None:
        ran.append(1)
        if len(ran) == 1:  # The task outlasts its interval.
            harness.advance(60)
            fire_due(harness.app.store)

    harness.drain()
    harness.advance(60)
    harness.drain()

    assert [firing.outcome for firing in harness.app.schedules.firings("tick")] == ["run", "run"]
    assert len(ran) == 2


@pytest.mark.stores("sqlite-wal")
def test_the_last_of_six_fields_names_seconds_as_in_croniter(manager):
    manager.schedule(cron="* * * * * */20", name="tick")(lambda: None)
    manager.duly.schedules.sync()

    assert {instant.second for instant in manager.duly.schedules.next("tick", 6)} == {0, 20, 40}


def test_two_schedules_of_one_function_both_fire(manager):
    """A module that is imported twice does not add a third schedule."""
    ran = []

    def tick() -> None:
        ran.append(1)

    for _ in range(2):
        manager.schedule(every=1, name="tick")(tick)
        manager.schedule(cron="* * * * * *", name="tick")(tick)
    with serving(manager):
        names = {schedule.name for schedule in manager.duly.schedules.list()}
        for name in names:
            wait_until(
                lambda name=name: bool(manager.duly.schedules.firings(name)),
                seconds=SOON,
                what=f"{name} comes due",
            )
        runs = manager.duly.runs.list()
    assert names == {"tick", "tick#2"}
    assert {manager.store.get(run.id).source for run in runs} == {"scheduled"}


def test_a_periodic_task_can_be_added_too(manager):
    @manager.schedule(cron="0 3 * * *", timezone="Europe/Berlin", retries=2, name="nightly")
    def nightly() -> str:
        return "done"

    with serving(manager):
        task_id = adding(manager).add_task(nightly)
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == "done"
        (schedule,) = manager.duly.schedules.list()
    assert (schedule.cron, schedule.tz) == ("0 3 * * *", "Europe/Berlin")
    assert manager.store.get(task_id).source == "manual"


def test_a_startup_task_runs_once_for_all_processes_that_start(manager_of):
    ran = []
    managers = [manager_of() for _ in range(3)]
    for manager in managers:

        @manager.schedule(every=3600, run_on_startup=True, name="warm-up")
        def warm_up() -> None:
            ran.append(1)

    first, second, third = managers
    with serving(first):
        wait_until(lambda: len(ran) == 1, seconds=SOON, what="the task ran")
        with serving(second), serving(third):
            pass
    assert len(first.duly.runs.list()) == 1
    assert first.store.list()[0].source == "scheduled"


@pytest.mark.stores("sqlite-wal")
def test_a_schedule_has_one_trigger(manager):
    for wrong in ({}, {"every": 1, "cron": "* * * * *"}, {"cron": "no cron"}, {"every": 0}):
        with pytest.raises(BadOption):
            manager.schedule(**wrong)


def test_a_one_time_task_runs_without_any_other_schedule(manager):
    """It can be listed and cancelled by its key until it is due."""
    ran = []

    @manager.task(name="close")
    def close(listing: int) -> None:
        ran.append(listing)

    def at(when: datetime) -> None:
        asyncio.run(
            manager.schedule_once(close, 7, run_at=when, run_key="close:7", tags={"kind": "x"})
        )

    with serving(manager):
        at(LATER)
        (waiting,) = asyncio.run(manager.list_scheduled(LATER))
        at(datetime.now(UTC))
        wait_until(lambda: ran == [7], seconds=SOON, what="the task ran")
        assert asyncio.run(manager.list_scheduled(LATER)) == []
        assert asyncio.run(manager.cancel_scheduled("close:7")) is False
    assert (waiting.run_key, waiting.func_name, waiting.fire_at) == ("close:7", "close", LATER)
    assert (waiting.kwargs, waiting.tags) == ({"listing": 7}, {"kind": "x"})
    assert waiting.to_dict()["fire_at"] == LATER.isoformat()
    found = manager.store.list()[0]
    assert (found.source, found.tags) == ("scheduled", {"kind": "x"})


def test_a_one_time_task_can_be_rescheduled_and_cancelled(manager):
    @manager.task(name="close")
    def close(listing: int) -> None: ...

    async def move() -> list[datetime]:
        for hours in (1, 3, 2):
            at = (LATER + timedelta(hours=hours)).replace(tzinfo=None)
            await manager.schedule_once(
                close, hours, run_at=at, run_key="close", idempotency_key="k", priority=4
            )
        await manager.schedule_once(close, 9, run_at=LATER, run_key="other")
        return await manager.list_scheduled(before=LATER + timedelta(days=1))

    other, moved = asyncio.run(move())

    assert (other.run_key, other.fire_at) == ("other", LATER)
    assert (moved.fire_at, moved.kwargs) == (LATER + timedelta(hours=2), {"listing": 2})
    assert (moved.idempotency_key, moved.priority) == ("k", 4)
    assert asyncio.run(manager.cancel_scheduled("close")) is True
    assert asyncio.run(manager.cancel_scheduled("close")) is False
    left = asyncio.run(manager.list_scheduled(LATER.replace(tzinfo=None)))
    assert [each.run_key for each in left] == ["other"]


def test_the_key_of_a_failed_task_is_scheduled_for_its_time_and_does_not_run_at_once(manager):
    ran = []

    @manager.task(name="close")
    def close(listing: int) -> None:
        ran.append(listing)
        raise ValueError

    with serving(manager):
        task_id = adding(manager).add_task(close, 1, idempotency_key="k")
        run = manager.duly.runs.get(task_id)
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="it fails")
    asyncio.run(manager.schedule_once(close, 2, run_at=LATER, run_key="close", idempotency_key="k"))
    (waiting,) = asyncio.run(manager.list_scheduled(LATER))
    run_all(manager)

    assert (waiting.run_key, waiting.kwargs) == ("close", {"listing": 2})
    assert (ran, run.refresh().state) == ([1], "failed")


def test_a_key_whose_task_was_cancelled_is_free_again(manager):
    @manager.task(name="close")
    def close() -> int:
        return 1

    async def schedule_and_cancel() -> None:
        for _ in range(2):
            await manager.schedule_once(close, run_at=LATER, run_key="close", idempotency_key="k")
            (_waiting,) = await manager.list_scheduled(LATER)
            assert await manager.cancel_scheduled("close") is True

    asyncio.run(schedule_and_cancel())
    with serving(manager):
        task_id = adding(manager).add_task(close, idempotency_key="k")
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == 1


@pytest.mark.stores("sqlite-wal")
def test_an_invalid_time_is_refused(manager):
    @manager.task(name="close")
    def close() -> None: ...

    for wrong in ("2040-01-01", None, LATER.date()):
        with pytest.raises(BadOption, match="run_at"):
            asyncio.run(manager.schedule_once(close, run_at=wrong, run_key="close"))


def test_the_newer_of_two_tasks_with_one_key_runs_even_if_scheduling_it_was_interrupted(
    manager, monkeypatch
):
    """No call cancelled the older task. It detects that it was superseded."""
    ran = []

    @manager.task(name="close")
    def close(which: str) -> None:
        ran.append(which)

    now = datetime.now(UTC)
    monkeypatch.setattr(type(manager._once), "_cancel", lambda *_: False)
    for which in ("older", "newer"):
        asyncio.run(manager.schedule_once(close, which, run_at=now, run_key="close"))
    run_all(manager)

    newer, older = manager.duly.runs.list()
    assert ran == ["newer"]
    assert (newer.state, older.state, older.cause) == ("succeeded", "cancelled", "superseded")


def test_a_one_time_task_belongs_to_no_process(manager_of):
    """The process that scheduled it may be gone, and the task still runs."""
    maker, other = manager_of(), manager_of()
    ran = []
    for manager in (maker, other):

        @manager.task(name="close")
        def close() -> None:
            ran.append(1)

        if manager is maker:
            at = datetime.now(UTC)
            asyncio.run(manager.schedule_once(close, run_at=at, run_key="close"))
    run_all(other)
    assert ran == [1]
