"""`duly runs`: lists, shows, waits, cancels, retries."""

import json
import sys
from datetime import date
from io import StringIO

import pytest
from rich.console import Console

import duly.run
from duly import Duly, Filter
from duly.cli import tail, wait
from duly.limits import TICK_BATCH
from duly.store.ops.upkeep import RegisterWorker, Tick
from tests.cli.conftest import answer, error

# The command refuses before it uses a store, so one kind is enough.
REFUSED_BEFORE_THE_STORE = pytest.mark.stores("sqlite-wal")

UNKNOWN = "00000000-0000-7000-8000-000000000000"


def ids_of(result):
    return [run["id"] for run in answer(result)["runs"]]


def test_list_shows_every_run_newest_first(cli, run_of):
    first, second = run_of("add", 1), run_of("add", 2)

    result = cli("runs", "list")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split()[:3] == ["ID", "STATE", "TASK"]
    assert [line.split()[0] for line in lines[1:]] == [second.id, first.id]
    assert "a=2" in lines[1]
    assert "\x1b" not in result.stdout


def test_list_as_json_has_every_field(cli, run_of):
    run = run_of("add", 1, key="k", tags={"shop": "7"})

    result = cli("runs", "list", "--json")

    document = answer(result)
    (found,) = document["runs"]
    assert document["cursor"] is None
    assert found["id"] == run.id
    assert found["state"] == "queued"
    assert found["arguments"] == {"args": [], "kwargs": {"a": 1}}
    assert found["arguments_hidden"] is False
    assert found["tags"] == {"shop": "7"}
    assert found["created_at"].endswith("Z")
    assert found["finished_at"] is None
    assert {"task", "queue", "lane", "cause", "priority", "generation", "claim_number"} <= set(
        found
    )
    assert {"attempt", "retries_used", "crashes", "due_at", "expires_at", "key"} <= set(found)
    assert {"result", "error", "traceback", "fingerprint", "progress", "parked"} <= set(found)


def test_quiet_lists_only_ids(cli, run_of):
    run = run_of("add", 1)

    assert cli("runs", "list", "-q").stdout == f"{run.id}\n"


def test_an_empty_list_leaves_stdout_empty(app, cli):
    result = cli("runs", "list")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "No run" in result.stderr


def test_an_empty_list_suggests_the_full_name_of_a_task(cli, run_of, drain, monkeypatch):
    run_of("add", 1)
    drain()

    known = cli("runs", "list", "--task", "add")
    unused = cli("runs", "list", "--task", "orders:stay")
    strange = cli("runs", "list", "--task", "nonsense")
    monkeypatch.delenv("DULY_APP")
    recorded = cli("runs", "list", "--task", "add")

    for result in (known, recorded):
        assert result.exit_code == 0
        assert result.stderr.endswith(". Did you mean orders:add?\n")
    assert "Did you mean" not in unused.stderr
    assert "Did you mean" not in strange.stderr


def test_an_empty_list_suggests_a_task_that_only_waits(cli, app, run_of, monkeypatch):
    run_of("add", 1)
    app.store.apply([RegisterWorker("other", "host", 1, 15.0, "[]", "[]"), Tick(TICK_BATCH)])
    monkeypatch.delenv("DULY_APP")

    result = cli("runs", "list", "--task", "add", "--state", "failed")

    assert result.stderr.endswith(". Did you mean orders:add?\n")


def test_filters_narrow_the_list(cli, run_of, drain):
    done = run_of("add", 1, tags={"shop": "7"})
    drain()
    mail = run_of("send", "x", delay=3600)
    slow = run_of("add", 2, queue="slow", delay=3600)

    assert ids_of(cli("runs", "list", "--json", "--state", "succeeded")) == [done.id]
    states = ("--state", "succeeded", "--state", "queued")
    assert len(ids_of(cli("runs", "list", "--json", *states))) == 3
    assert ids_of(cli("runs", "list", "--json", "--task", "orders:send")) == [mail.id]
    assert ids_of(cli("runs", "list", "--json", "--queue", "slow")) == [slow.id]
    assert ids_of(cli("runs", "list", "--json", "--tag", "shop=7")) == [done.id]
    assert ids_of(cli("runs", "list", "--json", "--tag", "shop=8")) == []
    assert len(ids_of(cli("runs", "list", "--json", "--since", "1h"))) == 3
    assert ids_of(cli("runs", "list", "--json", "--since", "2100-01-01T00:00Z")) == []
    assert len(ids_of(cli("runs", "list", "--json", "--since", "999999999w"))) == 3


@REFUSED_BEFORE_THE_STORE
@pytest.mark.parametrize(
    "bad",
    [
        ("--state", "lost"),
        ("--tag", "shop"),
        ("--since", "yesterday"),
        ("--since", "2031-01-01"),
        ("--limit", "0"),
        ("--limit", "201"),
        ("--nonsense",),
    ],
)
def test_invalid_filters_are_refused(app, cli, bad):
    result = cli("runs", "list", "--json", *bad)

    assert result.exit_code == 2
    assert error(result)["kind"] == "UsageError"


def test_a_cursor_continues_the_list(cli, run_of):
    ids = [run_of("add", number).id for number in range(3)]

    first = answer(cli("runs", "list", "--json", "--limit", "2"))
    second = answer(cli("runs", "list", "--json", "--limit", "2", "--cursor", first["cursor"]))

    assert [run["id"] for run in first["runs"] + second["runs"]] == ids[::-1]
    assert second["cursor"] is None
    assert f"--cursor {ids[1]}" in cli("runs", "list", "--limit", "2").stderr


def test_a_delayed_run_shows_its_due_time(cli, run_of):
    run_of("add", 1, delay=7200.5)

    assert "due in 2 h" in cli("runs", "list").stdout


def test_redacted_arguments_are_never_shown(cli, run_of):
    run = run_of("log_in", "ada", "s3cret")

    for command in (("list",), ("show", run.id)):
        for options in ((), ("--json",), ("--show-args",), ("--show-args", "--json")):
            result = cli("runs", *command, *options)
            assert "s3cret" not in result.output
            assert "***" in result.stdout


def test_without_the_application_arguments_are_shown_only_on_request(cli, run_of, monkeypatch):
    run = run_of("log_in", "ada", "s3cret")
    monkeypatch.delenv("DULY_APP")

    for command in (("list",), ("show", run.id)):
        hidden = cli("runs", *command)
        assert "s3cret" not in hidden.output
        assert "(arguments hidden: give --app)" in hidden.stdout
        asked = cli("runs", *command, "--show-args").stdout
        assert "ada" in asked
        assert "s3cret" not in asked, "its name marks it as a secret"
    (as_json,) = answer(cli("runs", "list", "--json"))["runs"]
    assert as_json["arguments"] is None
    assert as_json["arguments_hidden"] is True


def test_arguments_of_a_task_the_application_does_not_know_are_hidden(cli, folder, run_of):
    run_of("log_in", "ada", "s3cret")
    (folder / "other.py").write_text("from duly import Duly\napp = Duly()\n")

    result = cli("runs", "list", "--app", "other:app")

    assert "s3cret" not in result.output
    assert "does not know the task" in result.stdout


def test_arguments_that_do_not_fit_the_task_are_hidden(cli, folder, run_of):
    run = run_of("log_in", "ada", "s3cret")
    other = "from duly import Duly\napp = Duly()\n@app.task(name='orders:log_in')\ndef f(): ...\n"
    (folder / "other.py").write_text(other)

    for command in (("list",), ("show", run.id, "--show-args")):
        result = cli("runs", *command, "--app", "other:app")
        assert "s3cret" not in result.output
        assert "they do not fit the task" in result.stdout
    (found,) = answer(cli("runs", "list", "--json", "--app", "other:app"))["runs"]
    assert (found["arguments"], found["arguments_hidden"]) == (None, True)


def test_stored_text_cannot_reach_the_terminal_as_control_characters(cli, run_of, drain):
    evil = "\x1b[31mred\x1b]0;title\x07\r\x9b1A\x7f\u202ereversed\u2066[bold]x[/bold]:smile:"
    talked, failed = run_of("talk", evil), run_of("send", evil)
    drain()

    shown = [
        cli("runs", "list"),
        cli("runs", "show", talked.id),
        cli("runs", "show", failed.id),
        cli("runs", "wait", talked.id),
        cli("runs", "wait", failed.id),
        cli("dead", "list"),
        cli("dead", "groups"),
        cli("runs", "show", talked.id, "--json"),
        cli("runs", "wait", failed.id, "--json"),
    ]

    for result in shown:
        text = result.stdout + result.stderr
        assert all(character.isprintable() or character == "\n" for character in text)
    logs = shown[1].stdout
    assert r"\x1b[31mred" in logs
    assert r"\u202ereversed" in logs
    assert "[bold]x[/bold]:smile:" in logs


def test_show_prints_the_whole_call_and_the_attempt(cli, run_of, drain):
    long = "x" * 300
    run = run_of("send", long)
    first = run_of("add", 1)
    drain()

    shown = cli("runs", "show", run.id).stdout.replace("\n", "")

    assert f'send(text="{long}")' in shown
    assert "crashes" not in shown
    fields = [line.split() for line in cli("runs", "show", first.id).stdout.splitlines()]
    assert ["call", "add(a=1)"] in fields
    assert ["attempt", "1"] in fields


def test_show_prints_all_details_of_a_run(cli, run_of, drain):
    run = run_of("talk", "hello")
    drain()

    result = cli("runs", "show", run.id)

    assert result.exit_code == 0
    assert "succeeded" in result.stdout
    assert '"hello"' in result.stdout
    assert "attempt 1: returned after" in result.stdout
    assert "info    hello" in result.stdout


def test_show_prints_the_traceback_and_the_audit_entries(cli, dead):
    cli("runs", "retry", dead[0], "--reason", "the server is back")

    result = cli("runs", "show", dead[0])

    assert "Traceback (most recent call last)" in result.stdout
    assert "ConnectionError: no server answers order-0" in result.stdout
    assert "tester retry: the server is back" in result.stdout


def test_show_prints_operator_retries_in_plain_words(app, cli, dead, drain):
    for _ in range(2):
        cli("runs", "retry", dead[0])
        drain()

    shown = cli("runs", "show", dead[0]).stdout

    fields = [line.strip().split(maxsplit=1) for line in shown.splitlines()]
    assert ["retried", "2 times, by an operator"] in fields
    assert "attempt 1: raised after" in shown
    assert "attempt 1 after operator retry 2: raised after" in shown
    assert not {"generation", "claim"} & {field[0] for field in fields if field}


def test_show_as_json(cli, dead):
    cli("runs", "retry", dead[0], "--reason", "again")

    document = answer(cli("runs", "show", dead[0], "--json"))

    (attempt,) = document["attempts"]
    (act,) = document["acts"]
    assert document["run"]["generation"] == 2
    assert attempt["outcome"] == "raised"
    assert attempt["error"] == "ConnectionError: no server answers order-0"
    assert attempt["finished_at"].endswith("Z")
    assert (act["actor"], act["reason"]) == ("tester", "again")
    assert document["logs"] == []


@pytest.mark.parametrize("command", ["show", "wait", "cancel", "retry"])
def test_an_unknown_run_is_not_found(app, cli, command):
    result = cli("runs", command, UNKNOWN)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith("Error: there is no run")
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["show", "wait", "cancel", "retry"])
@pytest.mark.parametrize("run_id", ["no-uuid", "ünï", ""])
def test_an_invalid_id_is_not_found(app, cli, command, run_id):
    assert cli("runs", command, run_id).exit_code == 3


def test_an_error_as_json_goes_to_stderr(app, cli):
    result = cli("runs", "show", UNKNOWN, "--json")

    assert result.stdout == ""
    assert error(result)["kind"] == "RunNotFound"
    assert UNKNOWN in error(result)["message"]


def test_wait_prints_the_result(cli, run_of, drain):
    run = run_of("add", 1, 2)
    drain()

    result = cli("runs", "wait", run.id)

    assert result.exit_code == 0
    assert result.stdout == "3\n"


def test_wait_works_without_the_application_for_every_result(cli, run_of, drain, monkeypatch):
    ids = [run_of("add", 1).id, run_of("day_after", date(2031, 1, 1)).id]
    drain()
    monkeypatch.delenv("DULY_APP")

    assert [cli("runs", "wait", run_id).exit_code for run_id in ids] == [0, 0]


def test_wait_on_a_dead_letter_ends_with_1(cli, dead):
    result = cli("runs", "wait", dead[0])

    assert result.exit_code == 1
    assert "no server answers order-0" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_wait_ends_with_4_when_the_time_is_over(cli, run_of):
    run = run_of("add", 1)

    result = cli("runs", "wait", run.id, "--timeout", "0")

    assert result.exit_code == 4
    assert "is still queued after 0 s" in result.stderr


def test_wait_draws_a_bar_on_a_terminal(app, cli, run_of, url, monkeypatch):
    drawn = StringIO()
    monkeypatch.setattr(wait, "stderr_console", lambda: Console(file=drawn, force_terminal=True))
    ended, waits = run_of("add", 1), run_of("add", 1, delay=3600)
    app.worker().drain(timeout=30)

    assert cli("runs", "wait", ended.id).stdout == "1\n"
    assert cli("runs", "wait", waits.id, "--timeout", "0").exit_code == 4
    assert drawn.getvalue() != ""


@pytest.mark.parametrize("on_terminal", [True, False])
def test_wait_prints_the_reason_why_no_worker_has_claimed_the_run(
    cli, run_of, monkeypatch, on_terminal
):
    run = run_of("add", 1)
    console = Console(file=StringIO(), force_terminal=True) if on_terminal else None
    monkeypatch.setattr(wait, "stderr_console", lambda: console)
    monkeypatch.setattr(duly.run, "UNCLAIMED_SECONDS", 0.01)

    result = cli("runs", "wait", run.id, "--timeout", "0.3s")
    as_json = cli("runs", "wait", run.id, "--timeout", "0.3s", "--json")

    assert result.exit_code == 4
    told = f"Run {run.id} (orders:add) has not started yet: no worker has been seen on "
    assert result.stderr.count(told) == 1
    assert "no worker has been seen" in error(as_json)["message"]


def test_cancel_ends_a_waiting_run(app, cli, run_of):
    run = run_of("add", 1)

    result = cli("runs", "cancel", run.id, "--reason", "not needed")

    assert result.exit_code == 0
    assert result.stdout == f"Run {run.id} is cancelled.\n"
    assert app.runs.get(run.id).state == "cancelled"
    assert app.store.list_audit_entries(run.id, 10)[0].reason == "not needed"


def test_cancel_requests_the_end_of_a_running_run(app, cli, run_of, url, monkeypatch):
    monkeypatch.delenv("DULY_APP")
    with app.worker():
        run = run_of("stay")
        assert sys.modules["orders"].started.wait(30)
        result = cli("runs", "cancel", run.id, "--json")

        assert answer(result) == {"id": run.id, "answer": "requested"}
        assert cli("runs", "wait", run.id, "--timeout", "30").exit_code == 1
    assert app.runs.get(run.id).state == "cancelled"


def test_cancel_does_not_change_a_run_that_has_ended(cli, run_of, drain):
    run = run_of("add", 1)
    drain()

    result = cli("runs", "cancel", run.id)

    assert result.exit_code == 1
    assert "had already ended: succeeded" in result.stderr


def test_reschedule_moves_a_waiting_run_to_another_time_queue_and_priority(app, cli, run_of):
    run = run_of("add", 1)
    options = ("--priority", "5", "--queue", "slow", "--reason", "a flood")

    result = cli("runs", "reschedule", run.id, "--at", "2090-01-31T08:00Z", *options)

    assert result.exit_code == 0
    line = result.stdout
    assert line.startswith(f"Run {run.id} is due 2090-01-31 08:00:00 UTC (in ")
    assert line.endswith("), in queue slow with priority 5.\n")
    record = app.runs.get(run.id).record
    assert (record.queue, record.priority) == ("slow", 5)
    assert app.store.list_audit_entries(run.id, 10)[0].reason == "a flood"


def test_reschedule_starts_a_delayed_run_now(cli, run_of, drain):
    run = run_of("add", 1)
    later = answer(cli("runs", "reschedule", run.id, "--delay", "1h", "--json"))["run"]
    drain()
    waiting = run.refresh().state

    now = answer(cli("runs", "reschedule", run.id, "--now", "--json"))["run"]
    drain()

    assert waiting == "queued"
    assert now["due_at"] < later["due_at"]
    assert run.refresh().state == "succeeded"


def test_reschedule_refuses_a_run_that_has_ended(cli, run_of, drain):
    run = run_of("add", 1)
    drain()

    result = cli("runs", "reschedule", run.id, "--now")

    assert result.exit_code == 1
    assert "it has ended: succeeded" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "pass --now, --delay, --at, --priority or --queue"),
        (("--now", "--delay", "0"), "--now starts the run at once"),
        (("--delay", "5m", "--at", "2090-01-31T08:00Z"), "not both"),
        (("--at", "2090-01-31T08:00"), "has no time zone"),
        (("--priority", "high"), "not a valid integer"),
    ],
)
def test_reschedule_needs_one_time_at_most_and_something_to_change(cli, run_of, options, words):
    run = run_of("add", 1)

    result = cli("runs", "reschedule", run.id, *options)

    assert result.exit_code == 2
    assert words in result.stderr


def test_retry_queues_a_run_again(app, cli, dead):
    result = cli("runs", "retry", dead[0])

    assert result.exit_code == 0
    assert "generation 2" in result.stdout
    assert app.runs.get(dead[0]).state == "queued"


def test_retry_with_other_arguments_checks_them(app, cli, dead):
    refused = cli("runs", "retry", dead[0], "--args", '{"nonsense": 1}')
    result = cli("runs", "retry", dead[0], "--args", '{"text": "elsewhere"}', "--json")

    assert refused.exit_code == 2
    assert result.exit_code == 0
    assert answer(result)["run"]["arguments"]["kwargs"] == {"text": "elsewhere"}


def test_retry_with_other_arguments_needs_the_application(cli, dead, monkeypatch):
    monkeypatch.delenv("DULY_APP")

    assert cli("runs", "retry", dead[0], "--args", "[1]").exit_code == 2


def test_retry_accepts_the_arguments_that_show_prints(app, cli, run_of, drain):
    run = run_of("day_after", date(2031, 1, 1))
    drain()
    shown = answer(cli("runs", "show", run.id, "--json"))["run"]["arguments"]["kwargs"]

    result = cli("runs", "retry", run.id, "--args", json.dumps(shown))
    drain()

    assert result.exit_code == 0
    assert str(app.runs.get(run.id).result(0)) == "2031-01-02"


def test_retry_refuses_a_run_that_has_not_ended(cli, run_of):
    result = cli("runs", "retry", run_of("add", 1).id, "--json")

    assert result.exit_code == 1
    assert error(result)["kind"] == "RunNotFinal"


def test_the_url_option_overrides_the_application(app, cli, run_of, tmp_path):
    run_of("add", 1)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    other = Duly(elsewhere)
    other.task(name="orders:add")(lambda a: a).enqueue(7)
    other.close()

    result = cli("--url", elsewhere, "runs", "list", "--app", "orders:app")

    assert "a=7" in result.stdout
    assert "a=1" not in result.stdout


# -- tail --


def test_tail_starts_with_the_newest_runs_and_reports_changes(app, cli, run_of, drain):
    for number in range(3):
        run_of("add", number)
    drain()

    said = cli("runs", "tail", "-n", "2", "--for", "0").stdout.splitlines()
    found = cli("runs", "tail", "--for", "0", "--json").stdout.splitlines()

    assert len(said) == 2
    assert all("succeeded" in line and "orders:add" in line for line in said)
    assert [json.loads(line)["state"] for line in found] == ["succeeded"] * 3


def test_tail_reports_each_change_once(app, run_of, drain, monkeypatch):
    monkeypatch.setattr(tail, "_LOOK_SECONDS", 0.01)
    run = run_of("add", 1)
    found = tail.changes(app, Filter(), first=10, until=None)

    states = [next(found).state]
    drain()
    states.append(next(found).state)
    later = run_of("add", 2)

    assert states == ["queued", "succeeded"]
    assert next(found).id == later.id
    assert run.refresh().state == "succeeded"
