"""`duly queues` and `duly workers`."""

import os

from duly.api.json_forms import queue_document
from duly.cli.queues import _count
from duly.core.record import QueueRecord
from duly.store.ops.upkeep import RegisterWorker
from tests.cli.conftest import answer


def test_a_queue_can_be_bounded_and_its_bound_is_listed(app, cli):
    said = cli("queues", "limit", "mail", "--max-size", "5")
    both = answer(cli("queues", "limit", "mail", "3", "--max-size", "none", "--json"))

    assert said.stdout == "In queue mail 5 runs may wait.\n"
    assert both == {"name": "mail", "limit": 3, "max_size": None}
    assert answer(cli("queues", "list", "--json"))["queues"][0]["max_size"] is None
    assert cli("queues", "limit", "mail").exit_code == 2
    assert cli("queues", "limit", "mail", "--max-size", "x").exit_code == 2


def test_queues_with_live_runs_are_listed(cli, run_of):
    run_of("add", 1)
    run_of("send", "x", delay=3600)

    result = cli("queues", "list", "--json")

    default, mail = answer(result)["queues"]
    assert (default["name"], default["ready"], default["waiting"]) == ("default", 1, 0)
    assert (mail["name"], mail["ready"], mail["waiting"]) == ("mail", 0, 1)
    assert default["paused"] is False
    assert default["counts_capped"] is False
    assert cli("queues", "list", "-q").stdout.split() == ["default", "mail"]
    assert cli("queues", "list").stdout.splitlines()[1].split() == [
        "default",
        "open",
        "1",
        "0",
        "0",
        "-",
        "-",
    ]


def test_an_empty_list_of_queues_prints_a_sentence(app, cli):
    result = cli("queues", "list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "No queue" in result.stderr


def test_a_paused_queue_starts_nothing_until_it_is_resumed(app, cli, run_of, drain):
    paused = cli("queues", "pause", "default", "--reason", "maintenance")
    run = run_of("add", 1)
    drain()

    assert paused.stdout == "Queue default is paused.\n"
    assert app.runs.get(run.id).state == "queued"
    assert "its queue is paused" in cli("runs", "list").stdout
    assert "paused" in cli("queues", "list").stdout
    assert app.store.list_audit_entries("queue default", 1)[0].reason == "maintenance"

    resumed = cli("queues", "resume", "default", "--json")
    drain()

    assert answer(resumed) == {"name": "default", "paused": False}
    assert app.runs.get(run.id).state == "succeeded"


def test_an_unused_queue_is_paused_with_a_note(app, cli, run_of):
    run_of("add", 1, queue="slow")

    wrong = cli("queues", "pause", "slwo")
    right = [cli("queues", "pause", name) for name in ("slow", "mail", "slwo")]

    assert (wrong.exit_code, wrong.stdout) == (0, "Queue slwo is paused.\n")
    assert "no run and no worker has used queue 'slwo' yet; there is slow" in wrong.stderr
    assert [result.stderr for result in right] == [""] * 3


def test_an_invalid_queue_name_is_refused(app, cli):
    assert cli("queues", "pause", "two words").exit_code == 2
    assert cli("queues", "pause", "").exit_code == 2


def test_counts_over_the_cap_are_marked():
    queue = QueueRecord("mail", paused=False, ready=10_001, waiting=9_999, running=0)

    document = queue_document(queue)

    assert (document["ready"], document["waiting"]) == (10_000, 9_999)
    assert document["counts_capped"] is True
    assert (_count(10_001), _count(9_999)) == ("10,000+", "9,999")


def test_workers_are_listed(app, cli, drain):
    drain()

    result = cli("workers", "list", "--json")

    (worker,) = answer(result)["workers"]
    assert worker["pid"] == os.getpid()
    assert worker["queues"] == []
    assert "orders:add" in worker["tasks"]
    assert worker["started_at"].endswith("Z")
    assert cli("workers", "list", "-q").stdout.strip() == worker["id"]
    shown = cli("workers", "list").stdout
    assert worker["id"] in shown
    assert "every queue" in shown


def test_a_worker_that_was_killed_is_not_listed_as_live(app, cli):
    app.store.do(RegisterWorker("killed", "host", 4711, 0.0, "[]", "[]"))

    (worker,) = answer(cli("workers", "list", "--json"))["workers"]

    assert worker["state"] == "silent"
    assert "silent" in cli("workers", "list").stdout


def test_an_empty_list_of_workers_prints_a_sentence(app, cli):
    result = cli("workers", "list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "duly worker" in result.stderr


def test_a_limit_of_a_queue_can_be_set_and_removed(app, cli, run_of):
    run_of("add", 1)

    said = cli("queues", "limit", "default", "5", "--reason", "the API is slow")
    listed = answer(cli("queues", "list", "--json"))["queues"]
    lifted = cli("queues", "limit", "default", "none", "--json")

    assert said.stdout == "Queue default runs 5 at once.\n"
    assert listed[0]["limit"] == 5
    assert answer(lifted) == {"name": "default", "limit": None}
    assert app.store.list_audit_entries("queue default", 2)[1].reason == "the API is slow"
    assert cli("queues", "limit", "default", "0").exit_code == 2
    assert cli("queues", "limit", "default", "few").exit_code == 2


def test_drain_waits_until_no_run_of_a_queue_is_ready_or_running(app, cli, run_of, drain):
    run_of("add", 1)
    run_of("send", "x", delay=3600)

    waiting = cli("queues", "drain", "default", "--timeout", "0")
    drain()

    assert waiting.exit_code == 4
    assert cli("queues", "drain", "default").stdout == (
        "No run of queue default is ready or running.\n"
    )
    drained = {"name": "mail", "drained": True, "known": True}
    assert answer(cli("queues", "drain", "mail", "--json")) == drained


def test_an_unused_queue_is_drained_with_a_note(app, cli, run_of):
    run_of("add", 1, queue="slow")

    wrong = cli("queues", "drain", "slwo")

    assert wrong.exit_code == 0
    assert "no run and no worker has used queue 'slwo' yet; there is slow" in wrong.stderr
    assert answer(cli("queues", "drain", "slwo", "--json"))["known"] is False
