"""`duly demo`: short demos succeed, and wrong counts are reported."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import duly_prove.demo_command
from duly_prove import workload
from duly_prove.demo import DemoResult as OrderResult
from duly_prove.demo import OrderCounts, _row, kind_of
from duly_prove.history import DueInstant, FiringAtEnd, RunAtEnd
from duly_prove.schedule_demo import KINDS, ScheduleDemoResult, count

DULY = str(Path(sys.executable).with_name("duly"))
FIRST = "0:0"
"""The first schedule of the first kind, whose number is 0."""


def demo(url: str, *options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [DULY, "demo", "--seconds", "5", "--json", *options],
        env=os.environ | {"DULY_URL": url},
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )


# -- orders --


@pytest.mark.process
@pytest.mark.timeout(120)
def test_no_order_is_lost_or_doubled_while_workers_are_killed_and_frozen(store_url):
    done = demo(store_url, "--orders", "40")

    found = json.loads(done.stdout)
    whole = found["total"]
    assert (done.returncode, found["holds"]) == (0, True), done.stdout + done.stderr
    assert whole["enqueued"] == 40
    assert whole["succeeded"] + whole["interrupted"] + whole["dead"] == 40
    assert (whole["lost"], whole["duplicated"]) == (0, 0)
    assert found["kills"] + found["freezes"] > 0


ORDER, CHARGE, NOTIFY = (task.name for task in (workload.order, workload.charge, workload.notify))


def ended(state: str) -> RunAtEnd:
    return RunAtEnd("a", ORDER, state, None, 1, 1, 1, 0, None, 1)


@pytest.mark.parametrize(
    ("task", "state", "effects", "counted"),
    [
        (ORDER, "succeeded", 1, {"succeeded": 1}),
        (ORDER, "succeeded", 0, {"lost": 1}),
        (ORDER, "succeeded", 2, {"succeeded": 1, "duplicated": 1}),
        (ORDER, "queued", 1, {"lost": 1}),
        (ORDER, "queued", 0, {"lost": 1}),
        (ORDER, None, 0, {"lost": 1}),
        (ORDER, None, 1, {"succeeded": 1}),  # The effect counts. The row may be pruned.
        (ORDER, "failed", 0, {"dead": 1}),
        (CHARGE, "interrupted", 1, {"interrupted": 1, "interrupted_with_effect": 1}),
        (CHARGE, "interrupted", 0, {"interrupted": 1}),
        (CHARGE, "interrupted", 2, {"interrupted": 1, "duplicated": 1}),
        (CHARGE, "succeeded", 2, {"succeeded": 1, "duplicated": 1}),
        (NOTIFY, "succeeded", 3, {"succeeded": 1, "again": 2}),
        (NOTIFY, "succeeded", 0, {"lost": 1}),
    ],
)
def test_orders_are_counted_by_their_effects(task, state, effects, counted):
    runs = {} if state is None else {"a": ended(state)}
    others = {"b": NOTIFY if task != NOTIFY else ORDER}

    row = _row(kind_of(task), {"a": task} | others, runs, Counter({"a": effects}))

    nothing = dict.fromkeys(OrderCounts._fields[2:], 0)
    assert row._asdict() == {"kind": kind_of(task), "enqueued": 1} | nothing | counted


@pytest.mark.parametrize(
    ("spoilt", "status"), [({}, 0), ({"lost": 1}, 1), ({"duplicated": 1}, 1), ({"again": 3}, 0)]
)
def test_the_demo_fails_if_something_was_lost_or_doubled(folder, cli, monkeypatch, spoilt, status):
    row = OrderCounts("hold", 1, 1, 0, 0, 0, 0, 0, 0)._replace(**spoilt)
    database = {"kind": "sqlite", "version": "3", "journal": "wal"}
    result = OrderResult((row,), 1, 0, 0, 0, 0, (), 1.0, database, 1)
    monkeypatch.setattr(duly_prove.demo_command, "run_demo", lambda *_, **__: result)

    shown = cli("demo", "--orders", "10")
    told = cli("demo", "--orders", "10", "--json")

    assert (shown.exit_code, told.exit_code) == (status, status)
    assert json.loads(told.stdout)["holds"] is (status == 0)
    assert ("this is a bug in duly" in shown.stdout) is (status == 1)


def come_to(result, monkeypatch):
    monkeypatch.setattr(duly_prove.demo_command, "run_demo", lambda *_, **__: result)


SQLITE = {"kind": "sqlite", "version": "3", "journal": "wal"}


@pytest.mark.stores("sqlite")
def test_an_sqlite_address_is_reported_as_unused(folder, cli, monkeypatch):
    row = OrderCounts("hold", 1, 1, 0, 0, 0, 0, 0, 0)
    come_to(OrderResult((row,), 0, 0, 0, 0, 0, (), 1.0, SQLITE, 1), monkeypatch)
    monkeypatch.delenv("DULY_URL", raising=False)

    by_default = cli("demo")
    by_option = cli("demo", "--url", "sqlite:///mine.db")
    monkeypatch.setenv("DULY_URL", "sqlite:///mine.db")
    by_environment = cli("demo")

    said = "sqlite:///mine.db is not used"
    assert "not used" not in by_default.stderr
    assert said in by_option.stderr
    assert said in by_environment.stderr
    assert "sqlite:///duly.db by default." not in cli("demo", "--help").stdout


@pytest.mark.parametrize(
    ("late", "words"),
    [
        (0, "recorded nothing: their tasks were ended before they could report a result."),
        (1, "recorded nothing: 1 late result was refused, and the other tasks were ended first."),
        (2, "recorded nothing: 2 late results were refused, and"),
    ],
)
def test_the_table_and_the_text_report_the_same_zombies(folder, cli, monkeypatch, late, words):
    row = OrderCounts("hold", 1, 0, 1, 1, 0, 0, 0, 0)
    come_to(OrderResult((row,), 1, 1, 3, 4, late, ("an-id",), 1.0, SQLITE, 1), monkeypatch)

    shown = cli("demo").stdout

    assert "frozen workers that recorded nothing" in shown
    assert words in " ".join(shown.split())
    # The store no longer exists, so a link to the run would be useless.
    assert "an-id" not in shown
    assert "duly dead" not in shown


# -- schedules --


@pytest.mark.process
@pytest.mark.timeout(120)
def test_every_instant_runs_once_while_workers_are_killed(store_url):
    done = demo(store_url, "--schedules")

    found = json.loads(done.stdout)
    whole = found["total"]
    assert (done.returncode, found["holds"]) == (0, True), done.stdout
    assert whole["due"] == whole["fired"] == whole["ran"] > 0
    assert (whole["missed"], whole["doubled"]) == (0, 0)
    assert found["kills"] > 0


def firing(instant: int, run_id: str | None) -> FiringAtEnd:
    return FiringAtEnd(FIRST, 1, instant, instant, 1, "run", None, run_id)


@pytest.mark.parametrize(
    ("effects", "missed", "doubled"),
    [
        ([("a", 0), ("b", 0)], 0, 0),
        ([("a", 0)], 1, 0),
        ([("a", 0), ("b", 0), ("b", 0)], 0, 1),
        ([("a", 0), ("b", 0), ("nobody's", 0)], 0, 1),
        ([], 2, 0),
    ],
)
def test_the_demo_counts_the_effects_of_the_runs(effects, missed, doubled):
    due = [DueInstant(FIRST, 1, 1), DueInstant(FIRST, 1, 2)]

    rows = count(due, [firing(1, "a"), firing(2, "b")], effects)

    result = ScheduleDemoResult(rows, 0, 0, 0.0, {}, 1)
    assert (rows[0].due, rows[0].fired) == (2, 2)
    assert (rows[0].missed, rows[0].doubled) == (missed, doubled)
    assert len(rows) == len(KINDS)
    assert result.holds == (not missed and not doubled)


def test_an_instant_that_never_fired_is_missed():
    (row, *_) = count(
        [DueInstant(FIRST, 1, 1), DueInstant(FIRST, 1, 2)], [firing(1, "a")], [("a", 0)]
    )

    assert (row.due, row.fired, row.ran, row.missed, row.doubled) == (2, 1, 1, 1, 0)
