"""The health sentence for given statistics. These tests use no store."""

import pytest

from duly.core.record import (
    FinishedRunsByTime,
    OpenTransaction,
    QueueRecord,
    ScheduleRecord,
    WorkerRecord,
)
from duly.core.stranded_runs import StrandedRuns
from duly.dashboard.stats import BEYOND, HealthInputs, quantile, run_stats, summarize_health

SECOND = 1_000_000
NOW = 10**9 * SECOND
WORKER = WorkerRecord("w", "live", "host", 1, NOW, NOW, None, 15.0, "[]", "[]", 0)
QUEUE = QueueRecord("mail", paused=False, ready=0, waiting=0, running=0)
SCHEDULE = ScheduleRecord(
    *("nightly", 1, "code", "here", "shop:send", "default", "thread", 0, "[[],{}]", None),
    *("{}", "{}", "active", None, NOW + SECOND, None, 0, None, 0, 0),
)
DUMP = OpenTransaction(42, "ada", "pg_dump", "10.0.0.7", 60.0, slows_claims=False)
WELL = HealthInputs(
    NOW, [WORKER], [QUEUE], [FinishedRunsByTime(NOW, "succeeded", 100, 0, 0)], None, [SCHEDULE]
)


def ends(good, bad):
    return [
        FinishedRunsByTime(NOW, "succeeded", good, 0, 0),
        FinishedRunsByTime(NOW, "failed", bad, 0, 0),
    ]


def test_a_healthy_system_is_reported_as_well():
    health = summarize_health(WELL)

    assert (health.level, health.sentence) == ("good", "All is well.")
    assert health.reasons == (
        ("good", "1 live worker, 100 runs ended in the last hour", "workers"),
    )


@pytest.mark.parametrize(
    ("change", "level", "words"),
    [
        ({"workers": []}, "warn", "no worker is live"),
        (
            {"workers": [], "queues": [QUEUE._replace(ready=3)]},
            "bad",
            "no worker is live, and runs wait",
        ),
        (
            {"workers": [WORKER, WORKER._replace(state="silent")]},
            "warn",
            "1 of 2 workers is silent",
        ),
        ({"workers": [WORKER._replace(state="silent")]}, "warn", "no worker is live"),
        ({"workers": [WORKER._replace(state="dead")]}, "warn", "no worker is live"),
        ({"dead": 1}, "warn", "1 dead letter waits for an operator"),
        ({"dead": 520}, "warn", "520 dead letters wait for an operator"),
        ({"dead": 1_001}, "warn", "1,000+ dead letters wait for an operator"),
        (
            {"stranded": [StrandedRuns("shop:gone", "mail", 3, is_registered=False)]},
            "bad",
            "3 runs of shop:gone wait in queue 'mail', and no live worker knows the task",
        ),
        ({"ends": ends(95, 5)}, "warn", "5 % of the last hour's runs failed (5 of 100)"),
        ({"ends": ends(3, 1)}, "bad", "25 % of the last hour's runs failed (1 of 4)"),
        ({"oldest_due_at": NOW - 90 * SECOND}, "warn", "a run has been ready for 1 min"),
        ({"oldest_due_at": NOW - 900 * SECOND}, "bad", "a run has been ready for 15 min"),
        (
            {"queues": [QUEUE._replace(paused=True, waiting=7)]},
            "warn",
            "queue mail is paused, 7 runs wait in it",
        ),
        (
            {"schedules": [SCHEDULE._replace(next_at=NOW - 121 * SECOND)]},
            "bad",
            "schedule nightly is 2 min late",
        ),
        (
            {"schedules": [SCHEDULE._replace(state="paused", reason="holidays")]},
            "warn",
            "schedule nightly is paused: holidays",
        ),
        (
            {"oldest_transaction": DUMP._replace(seconds=400.0)},
            "warn",
            (
                "a transaction has been open for 6 min in session 42 of user 'ada' from 10.0.0.7"
                " (application_name 'pg_dump'): the database cannot remove ended runs, so"
                " claiming runs becomes slow"
            ),
        ),
        (
            {"oldest_transaction": DUMP._replace(application="", slows_claims=True)},
            "warn",
            (
                "a transaction has been open for 1 min in session 42 of user 'ada' from 10.0.0.7:"
                " the database cannot remove ended runs, so claiming runs becomes slow"
            ),
        ),
    ],
)
def test_each_problem_is_reported_with_its_reason(change, level, words):
    health = summarize_health(WELL._replace(**change))

    assert health.level == level
    assert [reason[:2] for reason in health.reasons] == [(level, words)]


@pytest.mark.parametrize(
    "change",
    [
        {"ends": ends(96, 4)},
        {"ends": []},
        {"oldest_due_at": NOW - 59 * SECOND},
        {"schedules": [SCHEDULE._replace(next_at=NOW - 119 * SECOND)]},
        {"oldest_transaction": DUMP},
        {"oldest_transaction": DUMP._replace(seconds=5.0, slows_claims=True)},
    ],
)
def test_small_problems_do_not_change_the_health(change):
    assert summarize_health(WELL._replace(**change)).level == "good"


def test_an_interrupted_run_of_any_age_needs_a_person():
    health = summarize_health(WELL._replace(dead=520, interrupted=1))

    assert (health.level, health.sentence) == ("bad", "Action needed.")
    assert health.reasons == (
        (
            "bad",
            "1 run was interrupted: find out whether it had its effect",
            "runs?q=state%3Ainterrupted",
        ),
        ("warn", "520 dead letters wait for an operator", "dead"),
    )


def test_the_report_names_only_a_few_of_many_unknown_tasks():
    lost = [
        StrandedRuns(f"shop:gone{number}", "mail", 1, is_registered=False) for number in range(9)
    ]

    *named, rest = summarize_health(WELL._replace(stranded=lost)).reasons

    assert [place for _, _, place in named] == [
        f"runs?q=task%3Ashop%3Agone{number}" for number in range(3)
    ]
    assert rest == ("bad", "runs of 6 more tasks wait for a worker that can run them", "tasks")


def test_runs_that_wait_while_no_worker_is_live_are_reported_once():
    lost = [StrandedRuns("shop:gone", "mail", 1, is_registered=False)]
    health = summarize_health(
        WELL._replace(workers=[], queues=[QUEUE._replace(waiting=1)], stranded=lost)
    )

    assert [words for _, words, _ in health.reasons] == ["no worker is live, and runs wait"]


def test_the_worst_reason_decides_the_health():
    health = summarize_health(WELL._replace(workers=[], ends=ends(1, 1)))

    assert health.level == "bad"
    assert [level for level, _, _ in health.reasons] == ["warn", "bad"]


def test_quantiles_are_between_their_bounds():
    assert quantile({}, 0.5) is None
    assert quantile({100: 10}, 0.5) == 75_000, "durations are spread evenly between 50 and 100 ms"
    assert quantile({10: 90, 500: 10}, 0.95) == 375_000
    assert quantile({BEYOND: 1}, 1.0) == 2 * 86_400_000 * 1_000
    assert run_stats([]).p95 is None
