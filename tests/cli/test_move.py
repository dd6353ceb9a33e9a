"""`duly move`: from SQLite to PostgreSQL, with all data."""

import json
from contextlib import closing
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import duly.cli.progress
from duly import Duly, current, step
from duly.clock import monotonic
from duly.core.concurrency_limits import limited_lane
from duly.errors import StoreRefused
from duly.store.ops.locks import AcquireLock, Locked
from duly.store.ops.runs import Enqueue
from duly.store.store_factory import open_store, sqlite_path
from tests.cli.conftest import answer
from tests.integrations.evidence import SCALE, keep
from tests.store.conformance.stores import opened_tables
from tests.store.conformance.verbs import (
    another_try,
    claim,
    failure,
    key,
    order,
    recover,
    register,
    success,
)

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
def source(tmp_path: Path) -> str:
    """The URL of a database file with every kind of record."""
    url = f"sqlite:///{tmp_path / 'old.db'}"
    app = Duly(url)

    @app.task(name="work", limit=2)
    def work(number: int) -> int:
        current().log.info("number %s", number)
        step("once", lambda: number)
        if number < 0:
            raise ValueError("negative")
        return number

    done = work.using(key="order-1", tags={"order": "1"}).enqueue(1)
    work.enqueue(-1)
    app.worker().drain(timeout=20)
    done.retry()
    work.using(delay=3600, key="order-2").enqueue(2)
    work.enqueue(3)
    app.schedules.add("hourly", work, every=timedelta(hours=1), args=(4,))
    app.queues.pause("slow", reason="for now")
    app.queues.limit("default", 7)
    app.send_event("paid", {"amount": 3})
    app.store.do(AcquireLock("ledger", "me", "ann", 60_000_000))
    app.close()
    return url


def everything(url: str) -> dict[str, list[str]]:
    """Return all data of a database in a form that does not depend on its kind."""
    with closing(open_store(url)) as store:
        runs = store.list_runs(_all())
        return {
            "runs": [str(run) for run in runs],
            "attempts": [str(each) for run in runs for each in store.list_attempts(run.id)],
            "steps": [str(each) for run in runs for each in store.list_steps(run.id)],
            "logs": [str(each) for run in runs for each in store.list_logs(run.id, 100)],
            "acts": [str(each) for each in store.list_audit_entries(None, 100)],
            "queues": [str(each) for each in store.list_queues()],
            "schedules": [str(each) for each in store.list_schedules(_schedules())],
        }


def _all():
    from duly.store.reads import RunFilter  # noqa: PLC0415 - a filter that selects everything

    return RunFilter(limit=200)


def _schedules():
    from duly.store.reads import ScheduleFilter  # noqa: PLC0415 - as above

    return ScheduleFilter()


def test_everything_arrives_and_continues(folder, cli, source, url):
    before = everything(source)

    result = cli("move", source, url, "--yes", "--json")

    assert result.exit_code == 0, result.stderr
    assert answer(result)["ok"]
    assert everything(url) == before
    app = Duly(url)
    app.task(name="work", limit=2)(lambda number: number)
    again = app.registry.get("work")
    assert again.lane == limited_lane("thread", "work")
    with closing(open_store(url)) as store:
        locked = store.do(AcquireLock("ledger", "other", "bob", 60_000_000))
        assert isinstance(locked, Locked)
        assert (locked.is_ours, locked.fence) == (True, 2)
    app.worker().drain(timeout=20)
    assert {run.state for run in app.runs.list(state=["succeeded"])} == {"succeeded"}
    assert len(app.runs.list(state=["succeeded"])) == 2
    app.close()
    with closing(open_store(source)) as old, pytest.raises(StoreRefused, match="was moved to"):
        old.do(order())


SIDES = ("audit_of_the_source", "audit_of_the_target")


def fill(url: str, runs: int) -> None:
    """Make runs: of ten, six succeed, one fails, one waits and two are ready. Half have a key."""
    with closing(open_store(url)) as store:
        register(store)
        for first in range(0, runs, 1_000):
            numbers = range(first, min(first + 1_000, runs))
            store.apply([one_of_ten(number) for number in numbers])
            # A seventh of the finished runs was tried before.
            store.apply([another_try(one) for one in claim(store, len(numbers) // 10)])
            claims = claim(store, len(numbers) * 7 // 10)
            ends = [success if place % 7 else failure for place in range(len(claims))]
            store.apply([end(one) for end, one in zip(ends, claims, strict=True)])
        recover(store)


def one_of_ten(number: int) -> Enqueue:
    """Make every tenth run wait, and give every second run a key."""
    keyed = key(f"order-{number}") if number % 2 else None
    return order(key=keyed, delay_seconds=3600.0 if number % 10 == 9 else 0.0)


@pytest.mark.scaled
def test_a_hundred_thousand_runs_leave_both_sides_clean(folder, cli, tmp_path, store_kind, url):
    source, runs = f"sqlite:///{tmp_path / 'many.db'}", 100_000 if SCALE > 1 else 1_000
    fill(source, runs)
    began_at = monotonic()

    moved = answer(cli("move", source, url, "--yes", "--json"))

    seconds = monotonic() - began_at
    audits = {name: answer(cli("audit", "--url", name, "--json")) for name in (source, url)}
    counts = {name: audit["runs"] for name, audit in audits.items()}
    broken = [flaw for audit in audits.values() for flaw in audit["flaws"]]
    document = {
        "seed": None,
        "strikes": {"made": 0, "tried": 0, "why": "nothing is drawn and no process is killed"},
        "counts": {
            "runs": runs,
            "moved": moved["moved"],
            **dict(zip(SIDES, counts.values(), strict=True)),
        },
        "measured": {"seconds_to_move_and_audit_both": round(seconds, 1)},
        "broken": broken + [flaw for flaws in moved["flaws"].values() for flaw in flaws],
    }
    keep("move", store_kind, document, "duly", "psycopg")
    assert (moved["ok"], broken) == (True, [])
    assert counts[url] == counts[source]
    assert counts[url]["accepted"] == runs
    assert {name for name, count in counts[url].items() if count == 0} == {"running", "pruned"}


def test_a_move_into_a_used_database_or_under_a_worker_is_refused(folder, cli, source, url):
    app = Duly(source)
    with app.worker():
        busy = cli("move", source, url, "--yes")
    app.close()
    first = cli("move", source, url, "--yes", "-q")
    second = cli("move", source, url, "--yes")

    assert (busy.exit_code, "stop all workers first" in busy.stderr) == (1, True)
    assert first.exit_code == 0
    assert (
        second.exit_code,
        "without any runs" in second.stderr,
    ) == (1, True)


def test_an_impossible_move_is_refused(folder, cli, source, url):
    assert cli("move", url, source, "--yes").exit_code == 2
    assert cli("move", "sqlite:///none.db", url, "--yes").exit_code == 1
    assert cli("move", source, url).exit_code == 1
    with opened_tables(url) as tables:
        assert tables.rows("SELECT 1 FROM duly_history") == []
    assert json.loads(cli("move", source, url, "--json").stderr)["error"]["kind"] == "UsageError"


def test_a_bar_shows_the_progress_of_a_move(cli, source, store_url, monkeypatch):
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True, width=200)
    monkeypatch.setattr(duly.cli.progress, "stderr_console", lambda: console)

    assert cli("move", source, store_url, "--yes").exit_code == 0

    assert "Copying" in drawn.getvalue()
    assert f"Auditing {sqlite_path(source)}" in drawn.getvalue()
