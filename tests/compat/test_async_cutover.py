"""One-time tasks in the tables of the article's scheduler: duly's scheduler runs each once."""

import asyncio
import enum
import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy
from sqlalchemy import Boolean, DateTime, Enum, Integer, String, Text
from sqlalchemy.orm import DeclarativeBase, mapped_column

from duly import Duly
from duly.compat.async_scheduler import AsyncScheduler, LastRunStatus, TaskType
from duly.core.instants import moment
from tests.servers.processes import wait_until

SOON = 20.0
HERE = __name__
sent: list[tuple[int, str]] = []


async def send_email_notification(user_id: int, message: str) -> None:
    """A task of these tests."""
    sent.append((user_id, message))


class Base(DeclarativeBase):
    """The application's models."""


class Kind(enum.Enum):
    """An enumeration that is stored by its name, as SQLAlchemy does."""

    ONCE = "once"
    CRON = "cron"


class Status(enum.Enum):
    """An enumeration that is stored by its name, too."""

    SUCCESS = "success"
    FAILURE = "failure"
    RUNNING = "running"


class ScheduledTask(Base):
    """The table with the columns of the article."""

    __tablename__ = "scheduler_tasks"

    id = mapped_column(Integer, primary_key=True, autoincrement=True)
    task_name = mapped_column(String(255), unique=True, nullable=False)
    task_type = mapped_column(Enum(Kind), nullable=False)
    cron_expression = mapped_column(String(100))
    once_time = mapped_column(DateTime(timezone=True))
    task_func = mapped_column(Text, nullable=False)
    task_args = mapped_column(Text)
    task_kwargs = mapped_column(Text)
    is_active = mapped_column(Boolean, default=True)
    last_run_time = mapped_column(DateTime(timezone=True))
    last_run_status = mapped_column(Enum(Status))
    last_run_error = mapped_column(Text)
    next_run_time = mapped_column(DateTime(timezone=True))


class LeftBehind:
    """A database that the article's scheduler has used."""

    def __init__(self, url: str) -> None:
        address = url.replace("postgresql://", "postgresql+psycopg://")
        self._engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.NullPool)
        Base.metadata.create_all(self._engine)

    def once(self, name: str, at: datetime, *args: object, **columns: object) -> None:
        """Leave a one-time task."""
        row = {
            "task_name": name,
            "task_type": Kind.ONCE,
            "once_time": at,
            "next_run_time": at,
            "task_func": f"{HERE}.send_email_notification",
            "task_args": json.dumps(args),
            "task_kwargs": "{}",
            **columns,
        }
        with self._engine.begin() as connection:
            connection.execute(sqlalchemy.insert(ScheduledTask), [row])

    def active(self) -> set[str]:
        """Return the names of the tasks that still wait there."""
        with self._engine.connect() as connection:
            names = sqlalchemy.select(ScheduledTask.task_name).where(ScheduledTask.is_active)
            return set(connection.scalars(names))


@pytest.fixture(autouse=True)
def _none_sent():
    sent.clear()


@pytest.fixture
def left(store_url):
    return LeftBehind(store_url)


@pytest.fixture
def app(store_url):
    with closing(Duly(store_url)) as app:
        yield app


def run(app, body, seconds=SOON) -> None:
    """Run an application in the order of the article: first the start, then the tasks."""

    async def main() -> None:
        scheduler = AsyncScheduler(app)
        await scheduler.start()
        try:
            await body(scheduler)
        finally:
            await scheduler.stop()

    asyncio.run(asyncio.wait_for(main(), seconds))


async def know(scheduler) -> None:
    """Register the functions of this module, as the article's lifespan does."""
    await scheduler.add_cron_task("yearly", "0 0 1 1 *", send_email_notification, args=(0, "never"))


async def know_and_wait(scheduler, count: int = 1) -> None:
    await know(scheduler)
    while len(sent) < count:  # noqa: ASYNC110 - several loops append to the list
        await asyncio.sleep(0.02)


def test_a_one_time_task_runs_when_its_function_is_known(app, left):
    left.once("mail_7", datetime.now(UTC), 7, "hello")

    async def body(scheduler) -> None:
        await asyncio.sleep(0)
        assert left.active() == {"mail_7"}, "nothing is registered yet"
        await know_and_wait(scheduler)
        logs = []
        while not logs or logs[0].status is LastRunStatus.RUNNING:
            logs = await scheduler.list_task_logs("mail_7")
        assert (logs[0].task_type, logs[0].status) == (TaskType.ONCE, LastRunStatus.SUCCESS)

    run(app, body)

    assert sent == [(7, "hello")]
    assert left.active() == set()


def test_a_one_time_task_of_the_article_waits_for_its_time(app, left):
    at = datetime.now(UTC) + timedelta(days=1)
    left.once("mail_7", at, 7, "hello")

    run(app, know)

    (waiting,) = app.runs.list()
    assert (waiting.state, moment(waiting.record.due_at)) == ("queued", at)
    assert sent == []


def test_a_task_that_came_due_during_the_cut_over_runs_at_once(app, left):
    left.once("mail_7", datetime.now(UTC) - timedelta(hours=1), 7, "hello")

    run(app, know_and_wait)

    assert sent == [(7, "hello")]


def test_a_start_that_finds_nothing_new_moves_nothing(app, left):
    left.once("mail_7", datetime.now(UTC), 7, "hello")
    run(app, know_and_wait)

    run(app, know)

    assert len(app.runs.list()) == 1


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"last_run_status": Status.RUNNING}, "it started and did not succeed"),
        ({"last_run_status": Status.FAILURE}, "it started and did not succeed"),
        ({"task_func": "jobs.renamed"}, "jobs.renamed is not registered"),
        ({"task_args": "[1]"}, "arguments do not fit"),
        ({"once_time": datetime(2024, 1, 1, tzinfo=UTC)}, "was missed"),
    ],
)
def test_a_task_that_cannot_be_moved_stays_and_the_log_names_it_once(
    app, left, caplog, columns, reason
):
    left.once("mail_7", datetime.now(UTC), 7, "hello", **columns)
    left.once("mail_8", datetime.now(UTC), 8, "hello")

    async def body(scheduler) -> None:
        await know_and_wait(scheduler)
        scheduler.register_task("another", send_email_notification)
        await know(scheduler)

    with caplog.at_level(logging.INFO, "duly"):
        run(app, body)

    assert sent == [(8, "hello")]
    assert left.active() == {"mail_7"}
    (warning,) = [each.getMessage() for each in caplog.records if "stays" in each.getMessage()]
    assert "mail_7" in warning
    assert reason in warning
    assert "1 rows of the async scheduler were moved to duly" in caplog.text


def test_cron_tasks_and_finished_tasks_are_not_moved(app, left):
    left.once("done", datetime.now(UTC), 7, "x", is_active=False, last_run_status=Status.SUCCESS)
    left.once("cron", datetime.now(UTC), 7, "x", task_type=Kind.CRON)

    run(app, know)

    assert app.runs.list() == []


def test_a_registered_name_selects_the_function(app, left):
    left.once("greet", datetime.now(UTC), "ann", task_func="elsewhere.greet")

    async def greet(name: str) -> None:
        sent.append((0, name))

    async def body(scheduler) -> None:
        scheduler.register_task("greet", greet)
        await know_and_wait(scheduler)

    run(app, body)

    assert sent == [(0, "ann")]


def test_schedulers_that_start_at_the_same_time_move_each_once(app, left, store_url):
    count = 30
    for number in range(count):
        left.once(f"mail_{number}", datetime.now(UTC), number, "hello")

    async def main() -> None:
        others = [Duly(store_url) for _ in range(3)]
        schedulers = [AsyncScheduler(other) for other in others]
        await asyncio.gather(*(scheduler.start() for scheduler in schedulers))
        await asyncio.gather(*(know_and_wait(scheduler, count) for scheduler in schedulers))
        await asyncio.gather(*(scheduler.stop() for scheduler in schedulers))
        for other in others:
            other.close()

    asyncio.run(asyncio.wait_for(main(), 3 * SOON))

    assert sorted(sent) == [(number, "hello") for number in range(count)]
    assert left.active() == set()


KILLED = """
import asyncio, sys
from duly import Duly, faultpoints
from duly.compat.async_scheduler import AsyncScheduler
from tests.compat.test_async_cutover import know

faultpoints.arm_from_environment()

async def main():
    scheduler = AsyncScheduler(Duly(sys.argv[1]))
    await scheduler.start()
    await know(scheduler)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize("point", ["transaction.before_commit", "transaction.after_commit"])
def test_a_scheduler_that_is_killed_during_the_move_moves_each_task_once(
    app, left, store_url, point
):
    for number in range(3):
        left.once(f"mail_{number}", datetime.now(UTC) + timedelta(seconds=1), number, "hello")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, store_url],
        check=False,
        timeout=SOON,
        env=os.environ | {"DULY_FAULTPOINTS": f"{point}=kill"},
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(left.active()) == (3 if point == "transaction.before_commit" else 0)

    run(app, lambda scheduler: know_and_wait(scheduler, 3), 2 * SOON)

    assert sorted(sent) == [(number, "hello") for number in range(3)]
    wait_until(lambda: left.active() == set(), seconds=SOON, what="all are moved")
