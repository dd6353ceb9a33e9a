"""Metrics for Prometheus."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from duly import Retry, current
from duly.core.histogram_bounds import BOUNDS
from duly.observe.metrics import DulyCollector
from duly.store.ops.upkeep import RollUpCounts
from tests.store.conformance.stores import opened_tables

NAMES = {
    "duly_runs",
    "duly_retries",
    "duly_run_duration_seconds",
    "duly_queue_wait_seconds",
    "duly_queue_depth",
    "duly_queue_oldest_age_seconds",
    "duly_dead_letters",
    "duly_workers",
    "duly_unserved_runs",
    "duly_schedule_lag_seconds",
}


def test_metrics_report_finished_waiting_and_dead_runs(busy, client):
    answer = client.get("/metrics")

    families = {each.name: each for each in text_string_to_metric_families(answer.text)}
    assert set(families) == NAMES
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["duly_runs_total", "default", "failed", "shop.orders:charge"] == 12
    assert samples["duly_run_duration_seconds_count", "shop.orders:charge"] == 12
    assert samples["duly_queue_depth", "mail", "waiting"] == 1
    assert samples["duly_dead_letters", "shop.orders:charge"] == 12
    assert samples["duly_schedule_lag_seconds", "nightly-report"] == 0


def test_a_run_that_other_runs_overtake_is_the_oldest_of_its_queue(shop, client):
    first = shop.nothing.using(priority=-9).enqueue()
    later = shop.nothing.using(priority=9).enqueue()

    assert f"/runs/{first.id}" in client.get("/").text
    assert f"/runs/{later.id}" not in client.get("/").text
    families = text_string_to_metric_families(client.get("/metrics").text)
    (age,) = [each for each in families if each.name == "duly_queue_oldest_age_seconds"]
    assert [sample.labels for sample in age.samples] == [{"queue": "reports"}]


def samples_of(client):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(client.get("/metrics").text)
        for sample in family.samples
    }


def test_an_empty_queue_is_reported_as_zero(shop, client):
    shop.nothing.enqueue()
    shop.app.worker().drain()

    found = samples_of(client)

    assert found["duly_queue_oldest_age_seconds", "reports"] == 0
    for state in ("ready", "waiting", "running"):
        assert found["duly_queue_depth", *sorted(["reports", state])] == 0


def test_all_series_of_a_histogram_have_the_same_buckets(shop, client):
    shop.nothing.enqueue()
    shop.pack.enqueue("lamp")
    shop.app.worker().drain()

    for name in ("duly_run_duration_seconds", "duly_queue_wait_seconds"):
        bounds = {}
        for family in text_string_to_metric_families(client.get("/metrics").text):
            for sample in family.samples:
                if sample.name == f"{name}_bucket":
                    labels = dict(sample.labels)
                    bounds.setdefault(str(labels.keys() - {"le"}), set()).add(labels["le"])
        (found,) = bounds.values()
        assert found == {*(str(bound / 1_000) for bound in BOUNDS), "+Inf"}


def test_retries_are_counted_and_a_run_lasts_from_its_first_start(shop, client):
    @shop.app.task(name="shop.orders:flaky", retries=Retry(3, base=0.2, factor=1, jitter=False))
    def flaky():
        if current().attempt < 3:
            raise ConnectionError("again")

    with shop.app.worker():
        flaky.enqueue().result(timeout=30)

    found = samples_of(client)
    labels = ("default", "shop.orders:flaky")
    assert found["duly_retries_total", *labels] == 2
    assert found["duly_runs_total", "default", "shop.orders:flaky", "succeeded"] == 1
    assert found["duly_run_duration_seconds_sum", "shop.orders:flaky"] > 0.4
    assert found["duly_run_duration_seconds_bucket", "0.25", "shop.orders:flaky"] == 0
    assert found["duly_run_duration_seconds_count", "shop.orders:flaky"] == 1


OLD_TALLY = """
INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay)
VALUES ({at}, 0, 'shop.orders:charge', 'default', 'succeeded', 2500, 5, 4, 8000000, 0)
"""
OLD_FOLD = """
INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay)
SELECT at / 60000000 * 60000000, 60, task, queue, state, took, waited, sum(runs), sum(elapsed),
       sum(delay)
  FROM duly_tallies
 WHERE span = 0
 GROUP BY at / 60000000, task, queue, state, took, waited
    ON CONFLICT (span, at, task, queue, state, took, waited) WHERE span > 0 DO UPDATE
   SET runs = duly_tallies.runs + excluded.runs,
       elapsed = duly_tallies.elapsed + excluded.elapsed,
       delay = duly_tallies.delay + excluded.delay
"""
NEW_TALLY = """
INSERT INTO duly_tallies (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
VALUES ({at}, 0, 'shop.orders:charge', 'default', 'succeeded', 2500, 5, 2, 2000000, 0, 5000000)
"""


def test_counts_of_workers_of_the_previous_version_break_no_metric_and_no_page(
    shop, client, store_url
):
    """During a rolling deploy, workers of the previous version still write their counts."""
    at = (shop.app.store.now() - 300_000_000) // 60_000_000 * 60_000_000
    found = []

    def look():
        samples = samples_of(client)
        length = "duly_run_duration_seconds"
        names = (f"{length}_count", f"{length}_sum")
        found.append(tuple(samples[name, "shop.orders:charge"] for name in names))
        (shown,) = re.findall("Lasted, p95</dt><dd>(.+?)</dd>", client.get("/").text)
        assert shown == "2.00 s"
        assert client.get("/tasks").status_code == 200

    with opened_tables(store_url) as tables:
        tables.execute(OLD_TALLY.format(at=at))
        look()
        tables.execute(OLD_FOLD)
        tables.execute("DELETE FROM duly_tallies WHERE span = 0")
        look()
        tables.execute(OLD_TALLY.format(at=at))
        shop.app.store.do(RollUpCounts(100))
        look()
        tables.execute(OLD_TALLY.format(at=at))
        tables.execute(OLD_FOLD)
        tables.execute("DELETE FROM duly_tallies WHERE span = 0")
        look()
        assert found == [(4, 8.0), (4, 8.0), (8, 16.0), (12, 24.0)]

        tables.execute(NEW_TALLY.format(at=at))
        both = samples_of(client)["duly_run_duration_seconds_sum", "shop.orders:charge"]
        shop.app.store.do(RollUpCounts(100))

    assert both == 29.0
    assert samples_of(client)["duly_run_duration_seconds_sum", "shop.orders:charge"] == both


def test_metrics_can_be_registered_with_the_application(busy):
    registry = CollectorRegistry()
    registry.register(DulyCollector(busy.app))
    labels = {"task": "shop.orders:fulfil", "queue": "default", "outcome": "failed"}

    assert registry.get_sample_value("duly_runs_total", labels) == 1


def test_the_grafana_dashboard_queries_only_existing_metrics():
    file = Path(__file__).parents[2] / "docs" / "grafana" / "duly.json"
    panels = json.loads(file.read_text())["panels"]

    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\bduly_\w+", target["expr"])
    }

    assert {re.sub(r"_(total|bucket)$", "", name) for name in asked} == NAMES
