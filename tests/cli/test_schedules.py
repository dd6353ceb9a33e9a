"""`duly schedules`."""

from datetime import UTC, datetime, timedelta

import pytest

from duly.store.due_schedules import fire_due
from duly.task import Task
from tests.cli.conftest import answer


@pytest.fixture
def digest(app):
    """A schedule in Paris whose task no worker knows."""
    task = Task(app, app.registry.get("orders:add"))
    return app.schedules.add("digest", task, cron="0 7 * * MON-FRI", tz="Europe/Paris", args=(1,))


def test_schedules_are_listed_in_words(cli, digest):
    (schedule,) = answer(cli("schedules", "list", "--json"))["schedules"]

    assert (schedule["name"], schedule["state"], schedule["tz"]) == (
        "digest",
        "active",
        "Europe/Paris",
    )
    assert schedule["next_at"].endswith("Z")
    assert "At 07:00 on Monday through Friday" in cli("schedules", "list").stdout
    assert "task unknown" in cli("schedules", "list").stdout
    assert cli("schedules", "list", "-q").stdout == "digest\n"


def test_an_empty_list_of_schedules_prints_a_sentence(app, cli):
    result = cli("schedules", "list")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no schedule" in result.stderr


def test_the_next_instants_are_printed_in_utc_and_local_time(cli, digest):
    lines = cli("schedules", "next", "digest", "-n", "3").stdout.splitlines()

    assert len(lines) == 3
    assert all(" UTC " in line and "07:00:00 CE" in line for line in lines)
    assert len(answer(cli("schedules", "next", "digest", "--json"))["next"]) == 5


def test_a_schedule_is_shown_with_its_latest_firings(app, cli, digest):
    run_id = cli("schedules", "run", "digest").stdout.strip()

    shown = cli("schedules", "show", "digest").stdout

    assert run_id in shown
    assert "no live worker knows it" in shown
    document = answer(cli("schedules", "show", "digest", "--json"))
    assert [firing["run_id"] for firing in document["firings"]] == [run_id]
    assert document["schedule"]["when"] == "At 07:00 on Monday through Friday"


def test_a_schedule_is_shown_with_its_expression_and_its_call(app, cli):
    task = Task(app, app.registry.get("orders:log_in"))
    app.schedules.add("hourly", task, cron="0 * * * *", args=("ada", "s3cret"))

    shown = cli("schedules", "show", "hourly").stdout
    document = answer(cli("schedules", "show", "hourly", "--json"))["schedule"]

    fields = [" ".join(line.split()) for line in shown.splitlines()]
    assert "cron 0 * * * *" in fields
    assert "time zone UTC" in fields
    assert 'call log_in(user="ada", secret="***")' in fields
    assert document["cron"] == "0 * * * *"
    assert document["arguments"] == {"args": [], "kwargs": {"user": "ada", "secret": "***"}}
    for command in (("list", "--json"), ("show", "hourly", "--show-args")):
        assert "s3cret" not in cli("schedules", *command).output


def test_a_paused_schedule_shows_no_next_instant(app, cli):
    task = Task(app, app.registry.get("orders:add"))
    app.schedules.add("often", task, every=1, args=(1,))
    cli("schedules", "pause", "often")

    (row,) = cli("schedules", "list").stdout.splitlines()[1:]

    assert row.split()[:5] == ["often", "paused,", "task", "unknown", "paused"]
    assert "if resumed" in cli("schedules", "show", "often").stdout
    assert "The schedule is paused" in cli("schedules", "next", "often").stderr


def test_a_schedule_can_be_paused_resumed_and_removed(app, cli, digest):
    assert cli("schedules", "pause", "digest", "--reason", "loud").stdout == (
        "Schedule digest is paused.\n"
    )
    assert app.schedules.get("digest").reason == "loud"
    assert answer(cli("schedules", "resume", "digest", "--json")) == {
        "name": "digest",
        "state": "active",
    }
    assert cli("schedules", "remove", "digest").exit_code == 0
    assert cli("schedules", "list", "-q").stdout == ""
    assert cli("schedules", "list", "-q", "--removed").stdout == "digest\n"


def test_the_firings_of_a_schedule_are_listed(app, cli):
    task = Task(app, app.registry.get("orders:add"))
    app.schedules.add("once", task, at=datetime.now(UTC) - timedelta(hours=2), args=(1,))
    fire_due(app.store, 10)

    (firing,) = answer(cli("schedules", "firings", "once", "--json"))["firings"]

    assert firing["outcome"] == "caught_up"
    assert firing["run_id"] in cli("schedules", "firings", "once").stdout


def test_a_firing_shows_the_outcome_of_its_run(app, cli, drain):
    for name, text in (("add", (1,)), ("send", ("x",))):
        task = Task(app, app.registry.get(f"orders:{name}"))
        app.schedules.add(name, task, at=datetime.now(UTC), args=text)
    fire_due(app.store, 10)
    before = answer(cli("schedules", "firings", "send", "--json"))["firings"][0]["run_state"]
    drain()

    shown = {name: cli("schedules", "firings", name).stdout for name in ("add", "send")}

    assert before == "queued"
    assert "succeeded" in shown["add"]
    assert "failed" in shown["send"]
    assert "failed" in cli("schedules", "show", "send").stdout
    (firing,) = answer(cli("schedules", "firings", "send", "--json"))["firings"]
    assert (firing["outcome"], firing["run_state"]) == ("run", "failed")


def test_a_backfill_runs_the_missed_instants(app, cli, digest):
    span = ("--from", "2025-03-03", "--to", "2025-03-08")

    first = answer(cli("schedules", "backfill", "digest", *span, "--json"))["run_ids"]
    zoned = ("--from", "2025-03-03T00:00Z", "--to", "2025-03-08T01:00+01:00")
    again = cli("schedules", "backfill", "digest", *zoned)
    unread = cli("schedules", "backfill", "digest", "--from", "monday", "--to", "2025-03-08")

    assert len(first) == 5
    assert (again.stdout, again.stderr) == ("", "0 runs enqueued.\n")
    assert (unread.exit_code, "is not an ISO 8601 time" in unread.stderr) == (2, True)


def test_a_schedule_that_has_ended_cannot_be_paused(app, cli):
    task = Task(app, app.registry.get("orders:add"))
    app.schedules.add("once", task, at=datetime.now(UTC), args=(1,))
    fire_due(app.store, 10)

    result = cli("schedules", "pause", "once")

    assert (result.exit_code, result.stdout) == (1, "")
    assert "'once' has ended" in result.stderr


@pytest.mark.parametrize("act", ["show", "next", "firings", "pause", "resume", "remove", "run"])
def test_an_unknown_schedule_has_its_own_exit_status(app, cli, act):
    result = cli("schedules", act, "nothing")

    assert result.exit_code == 3
    assert "no schedule 'nothing'" in result.stderr
