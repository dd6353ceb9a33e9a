"""`duly dead`: lists, groups, retries and discards dead letters."""

import json
from io import StringIO

import pytest
from rich.console import Console

import duly.cli.progress
from tests.cli.conftest import answer, error

# The command refuses before it uses a store, so one kind is enough.
REFUSED_BEFORE_THE_STORE = pytest.mark.stores("sqlite-wal")

UNKNOWN = "00000000-0000-7000-8000-000000000000"


def states(app, ids):
    return [app.runs.get(run_id).state for run_id in ids]


def test_list_shows_only_dead_letters(cli, dead, run_of):
    run_of("add", 1)

    result = cli("dead", "list", "--json")

    assert [run["id"] for run in answer(result)["runs"]] == dead[::-1]
    assert cli("dead", "list", "-q").stdout.split() == dead[::-1]
    assert "no server answers order-2" in cli("dead", "list").stdout


def test_list_takes_filters(cli, dead):
    assert answer(cli("dead", "list", "--json", "--state", "interrupted"))["runs"] == []
    assert answer(cli("dead", "list", "--json", "--task", "orders:add"))["runs"] == []
    assert len(answer(cli("dead", "list", "--json", "--queue", "mail"))["runs"]) == 3
    assert len(answer(cli("dead", "list", "--json", "--since", "1h"))["runs"]) == 3
    assert cli("dead", "list", "--state", "succeeded").exit_code == 2


def test_groups_count_dead_letters_with_the_same_cause(cli, dead):
    result = cli("dead", "groups", "--json")

    (group,) = answer(result)["groups"]
    assert group["count"] == 3
    assert group["task"] == "orders:send"
    assert group["sample_id"] in dead
    assert group["last_at"].endswith("Z")
    listed = cli("dead", "list", "--json", "--fingerprint", group["fingerprint"])
    assert len(answer(listed)["runs"]) == 3
    assert cli("dead", "groups", "-q").stdout.strip() == group["fingerprint"]
    assert cli("dead", "groups").stdout.splitlines()[1].split()[:2] == ["3", "orders:send"]


def test_an_empty_list_of_groups_prints_a_sentence(app, cli):
    result = cli("dead", "groups")

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "No dead letter" in result.stderr


def test_retry_by_id(app, cli, dead):
    result = cli("dead", "retry", dead[0], dead[1], dead[0], "--yes", "--reason", "fixed")

    assert result.exit_code == 0
    assert result.stdout == "retried 2, skipped 0\n"
    assert states(app, dead) == ["queued", "queued", "failed"]
    assert app.store.list_audit_entries(dead[0], 1)[0].reason == "fixed"


def test_retry_names_the_live_run_that_has_the_key_of_a_dead_letter(app, cli, run_of, drain):
    first = run_of("send", "order-1", key="k", unique="active")
    drain()
    second = run_of("send", "order-1", key="k", unique="active")
    words = f"run {first.id} cannot be retried while another run has its key: run {second.id}"

    many = cli("dead", "retry", first.id, "--yes")
    one = cli("runs", "retry", first.id)

    assert (many.exit_code, many.stdout) == (1, "retried 0, skipped 1\n")
    assert words in many.stderr
    assert one.exit_code == 1
    assert words in one.stderr
    assert states(app, [first.id]) == ["failed"]


def test_retry_by_filter(app, cli, dead):
    result = cli("dead", "retry", "--task", "orders:send", "--yes", "--json", "--rate", "1000")

    assert answer(result) == {"retried": 3, "skipped": 0, "left": 0, "dry_run": False}
    assert states(app, dead) == ["queued"] * 3


@pytest.mark.parametrize("task", ["send", "orders.send", "orders:sned"])
def test_a_filter_that_matches_nothing_suggests_a_task(app, cli, dead, task):
    acted = cli("dead", "retry", "--task", task)
    listed = cli("dead", "list", "--task", task)
    counted = cli("dead", "discard", "--task", task, "--dry-run")

    assert [each.exit_code for each in (acted, listed, counted)] == [3, 0, 3]
    assert acted.stdout == ""
    for result in (acted, listed, counted):
        assert "No dead letter matches in " in result.stderr
        assert "dead letters of orders:send." in result.stderr
    assert "orders:send" not in cli("dead", "retry", "--task", "quite-another").stderr


@pytest.mark.parametrize("has_app", [True, False])
def test_a_task_without_dead_letters_causes_no_error(app, cli, run_of, monkeypatch, has_app):
    if not has_app:
        monkeypatch.delenv("DULY_APP")
        run_of("add", 1)

    result = cli("dead", "retry", "--task", "orders:add", "--yes")

    assert (result.exit_code, result.stdout) == (0, "retried 0, skipped 0\n")


def test_retry_without_a_filter_needs_all(app, cli, dead):
    refused = cli("dead", "retry", "--yes")
    result = cli("dead", "retry", "--all", "--yes")

    assert refused.exit_code == 2
    assert result.stdout == "retried 3, skipped 0\n"


@REFUSED_BEFORE_THE_STORE
@pytest.mark.parametrize(
    "mixed", [(UNKNOWN, "--all"), (UNKNOWN, "--queue", "mail"), ("--all", "--queue", "mail")]
)
def test_ids_filters_and_all_exclude_each_other(app, cli, mixed):
    assert cli("dead", "retry", *mixed, "--yes").exit_code == 2
    assert cli("dead", "discard", *mixed, "--yes", "--reason", "r").exit_code == 2


@pytest.mark.parametrize("command", [("retry",), ("discard", "--reason", "r")])
def test_an_unknown_id_is_not_found_before_anything_is_done(app, cli, dead, command):
    result = cli("dead", *command, dead[0], UNKNOWN, "--yes", "--json")

    assert result.exit_code == 3
    assert error(result)["kind"] == "RunNotFound"
    assert states(app, dead) == ["failed"] * 3


def test_a_run_that_is_no_dead_letter_is_skipped(app, cli, dead, run_of):
    alive = run_of("add", 1, delay=3600)

    result = cli("dead", "retry", dead[0], alive.id, "--yes")

    assert result.stdout == "retried 1, skipped 1\n"


@pytest.mark.parametrize("command", [("retry",), ("discard", "--reason", "r")])
def test_dry_run_only_counts(app, cli, dead, command):
    by_filter = cli("dead", *command, "--all", "--dry-run")
    by_id = cli("dead", *command, dead[0], "--dry-run", "--json")

    assert by_filter.stdout.startswith("3 would be ")
    assert answer(by_id)["matching"] == 1
    assert answer(by_id)["dry_run"] is True
    assert states(app, dead) == ["failed"] * 3


@pytest.mark.parametrize("command", [("retry",), ("discard", "--reason", "r")])
@pytest.mark.parametrize("said", ["n\n", "\n", ""])
def test_an_unconfirmed_command_changes_nothing(app, cli, dead, command, said):
    result = cli("dead", *command, "--all", stdin=said)

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "3 dead letters?" in result.stderr
    assert "nothing was done" in result.stderr
    assert states(app, dead) == ["failed"] * 3


def test_json_output_requires_the_yes_option(app, cli, dead):
    result = cli("dead", "retry", "--all", "--json", stdin="y\n")

    assert result.exit_code == 2
    assert "--yes" in error(result)["message"]
    assert states(app, dead) == ["failed"] * 3


def test_a_yes_at_the_prompt_continues(app, cli, dead):
    result = cli("dead", "retry", dead[0], stdin="y\n")

    assert result.exit_code == 0
    assert "Retry 1 dead letter?" in result.stderr
    assert "retried 1" in result.stdout


def test_discard_ends_them_as_cancelled(app, cli, dead):
    result = cli("dead", "discard", "--queue", "mail", "--reason", "a test", "--yes", "--json")

    assert answer(result) == {"discarded": 3, "skipped": 0, "left": 0, "dry_run": False}
    assert states(app, dead) == ["cancelled"] * 3
    assert [app.runs.get(run_id).cause for run_id in dead] == ["discarded"] * 3


def test_discard_needs_a_reason(app, cli, dead):
    result = cli("dead", "discard", "--all", "--yes")

    assert result.exit_code == 2
    assert "--reason" in result.stderr
    assert states(app, dead) == ["failed"] * 3


@REFUSED_BEFORE_THE_STORE
@pytest.mark.parametrize("rate", ["0", "-1", "fast", "nan", "inf", "1e-320"])
def test_a_rate_is_a_number_above_zero(app, cli, rate):
    assert cli("dead", "retry", "--all", "--yes", "--rate", rate).exit_code == 2


def test_operator_actions_work_without_the_application(app, cli, dead, monkeypatch):
    monkeypatch.delenv("DULY_APP")

    assert cli("dead", "retry", "--all", "--yes", "-q").stdout == ""
    assert states(app, dead) == ["queued"] * 3


def test_a_retry_draws_no_bar_with_quiet_or_json(app, cli, dead, monkeypatch):
    drawn = StringIO()
    console = Console(file=drawn, force_terminal=True)
    monkeypatch.setattr(duly.cli.progress, "stderr_console", lambda: console)

    silent = cli("dead", "retry", dead[0], "--yes", "--quiet")
    as_json = cli("dead", "retry", dead[1], "--yes", "--json")
    before = drawn.getvalue()
    cli("dead", "retry", dead[2], "--yes")

    assert (silent.exit_code, as_json.exit_code) == (0, 0)
    assert before == ""
    assert "Retry" in drawn.getvalue()


def test_export_writes_one_document_per_dead_letter(app, cli, dead, monkeypatch):
    monkeypatch.setattr("duly.cli.dead.PAGE", 2)

    lines = cli("dead", "export").stdout.splitlines()
    none = cli("dead", "export", "--task", "orders:add")

    assert [json.loads(line)["id"] for line in lines] == dead[::-1]
    assert json.loads(lines[0])["error"] == "ConnectionError: no server answers order-2"
    assert (none.exit_code, none.stdout) == (0, "")
