"""What Prometheus reads."""

import json
import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from duly.observe.metrics import DulyCollector

NAMES = {
    "duly_runs",
    "duly_run_duration_seconds",
    "duly_queue_wait_seconds",
    "duly_queue_depth",
    "duly_queue_oldest_age_seconds",
    "duly_dead_letters",
    "duly_workers",
    "duly_unserved_runs",
    "duly_schedule_lag_seconds",
}


def test_metrics_tell_what_became_of_runs_and_what_waits(busy, client):
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


def test_a_run_that_others_overtake_is_the_oldest_of_its_queue(shop, client):
    first = shop.nothing.using(priority=-9).enqueue()
    later = shop.nothing.using(priority=9).enqueue()

    assert f"/runs/{first.id}" in client.get("/").text
    assert f"/runs/{later.id}" not in client.get("/").text
    families = text_string_to_metric_families(client.get("/metrics").text)
    (age,) = [each for each in families if each.name == "duly_queue_oldest_age_seconds"]
    assert [sample.labels for sample in age.samples] == [{"queue": "reports"}]


def test_metrics_join_those_of_the_application(busy):
    registry = CollectorRegistry()
    registry.register(DulyCollector(busy.app))
    labels = {"task": "shop.orders:fulfil", "queue": "default", "outcome": "failed"}

    assert registry.get_sample_value("duly_runs_total", labels) == 1


def test_the_dashboard_of_grafana_asks_for_metrics_that_there_are():
    file = Path(__file__).parents[2] / "docs" / "grafana" / "duly.json"
    panels = json.loads(file.read_text())["panels"]

    asked = {
        name
        for panel in panels
        for target in panel["targets"]
        for name in re.findall(r"\bduly_\w+", target["expr"])
    }

    assert {re.sub(r"_(total|bucket)$", "", name) for name in asked} == NAMES
