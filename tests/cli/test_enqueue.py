"""`duly enqueue`: accepts one run, or explains the refusal."""

import sys

import pytest

from tests.cli.conftest import answer, error

# The command refuses before it uses a store, so one kind is enough.
REFUSED_BEFORE_THE_STORE = pytest.mark.stores("sqlite-wal")


def test_enqueue_prints_the_id_of_a_new_run(app, cli):
    result = cli("enqueue", "orders:add", '{"a": 1, "b": 2}')

    assert result.exit_code == 0
    assert app.runs.get(result.stdout.strip()).record.arguments == '[[],{"a":1,"b":2}]'


def test_an_array_gives_positional_arguments(app, cli):
    result = cli("enqueue", "orders:add", "[1, 2]")

    assert app.runs.get(result.stdout.strip()).record.arguments == '[[],{"a":1,"b":2}]'


def test_arguments_can_come_from_stdin(app, cli):
    result = cli("enqueue", "orders:log_in", "-", stdin='{"user": "ada", "secret": "s3cret"}')

    assert result.exit_code == 0
    assert "s3cret" in app.runs.get(result.stdout.strip()).record.arguments


def test_a_task_is_found_by_the_last_part_of_its_name(app, cli):
    result = cli("enqueue", "add", "[1]")

    assert app.runs.get(result.stdout.strip()).record.task == "orders:add"


def test_options_reach_the_run(app, cli):
    result = cli(
        *("enqueue", "add", "[1]", "--json", "--key", "k", "--delay", "2h", "--queue", "slow"),
        *("--priority", "7", "--tag", "shop=7", "--tag", "kind=a=b", "--expires", "1d"),
    )

    document = answer(result)
    run = document["run"]
    assert document["new"] is True
    assert (run["queue"], run["priority"], run["key"]) == ("slow", 7, "k")
    assert run["tags"] == {"shop": "7", "kind": "a=b"}
    record = app.runs.get(run["id"]).record
    assert record.due_at - record.created_at == 2 * 3600 * 1_000_000
    assert record.expires_at - record.created_at == 24 * 3600 * 1_000_000


def test_at_is_an_instant_with_a_zone(app, cli):
    result = cli("enqueue", "add", "[1]", "--at", "2031-01-31T10:00+02:00", "--json")

    assert answer(result)["run"]["due_at"] == "2031-01-31T08:00:00.000000Z"


@REFUSED_BEFORE_THE_STORE
def test_at_without_a_zone_is_refused(app, cli):
    result = cli("enqueue", "add", "[1]", "--at", "2031-01-31T10:00")

    assert result.exit_code == 2
    assert "has no time zone" in result.stderr


@REFUSED_BEFORE_THE_STORE
def test_at_and_delay_exclude_each_other(app, cli):
    result = cli("enqueue", "add", "[1]", "--at", "2031-01-31T10:00Z", "--delay", "1h")

    assert result.exit_code == 2
    assert "not both" in result.stderr


@REFUSED_BEFORE_THE_STORE
@pytest.mark.parametrize("given", ["nonsense", "3", '"text"', "null", "[1", "[" * 100_000])
def test_arguments_that_are_no_object_or_array_are_refused(app, cli, given):
    assert cli("enqueue", "add", given).exit_code == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{}", "missing a required argument: 'a'"),
        ('{"a": 1, "c": 2}', "unexpected keyword argument 'c'"),
        ("[1, 2, 3]", "too many positional arguments"),
        ("[NaN]", "a"),
        ("[99999999999999999999]", "a"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_and_create_no_run(app, cli, given, said):
    result = cli("enqueue", "add", given)

    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert app.runs.list() == []


def test_values_without_a_json_type_are_written_as_stored(app, cli, drain):
    result = cli("enqueue", "day_after", '{"day": {"$date": "2031-12-31"}}')
    drain()

    assert str(app.runs.get(result.stdout.strip()).result(0)) == "2032-01-01"


def test_an_unknown_task_is_not_found(app, cli):
    result = cli("enqueue", "orders:nothing", "--json")

    assert result.exit_code == 3
    assert error(result)["kind"] == "TaskNotRegistered"


@REFUSED_BEFORE_THE_STORE
def test_an_ambiguous_short_name_is_refused(app, cli):
    app.task(name="other:add")(lambda: None)

    result = cli("enqueue", "add", "[1]")

    assert result.exit_code == 2
    assert "orders:add or other:add" in result.stderr


def test_a_used_key_returns_its_existing_run(app, cli):
    first = cli("enqueue", "add", "[1]", "--key", "k")

    second = cli("enqueue", "add", "[1]", "--key", "k")

    assert second.exit_code == 0
    assert second.stdout == first.stdout
    assert "nothing new" in second.stderr
    assert answer(cli("enqueue", "add", "[1]", "--key", "k", "--json"))["new"] is False


def test_a_used_key_with_other_arguments_is_a_failure(app, cli):
    cli("enqueue", "add", "[1]", "--key", "k")

    result = cli("enqueue", "add", "[2]", "--key", "k", "--json")

    assert result.exit_code == 1
    assert error(result)["kind"] == "KeyConflict"


@REFUSED_BEFORE_THE_STORE
def test_enqueue_needs_the_application(app, cli, monkeypatch):
    monkeypatch.delenv("DULY_APP")

    result = cli("enqueue", "add", "[1]")

    assert result.exit_code == 2
    assert "--app" in result.stderr


def test_wait_prints_the_result(app, cli, url):
    with app.worker():
        # The worker needs another instance, because the command closes its own.
        del sys.modules["orders"]
        result = cli("enqueue", "add", "[1, 2]", "--wait", "--timeout", "30s")

    run_id, value = result.stdout.splitlines()
    assert result.exit_code == 0
    assert value == "3"
    assert app.runs.get(run_id).result(0) == 3


def test_wait_on_a_run_that_fails_ends_with_1(app, cli):
    with app.worker():
        del sys.modules["orders"]
        result = cli("enqueue", "send", '["x"]', "--wait", "--json")

    assert result.exit_code == 1
    assert answer(result)["run"]["state"] == "failed"
    assert error(result)["kind"] == "RunFailed"


def test_wait_ends_with_4_when_the_time_is_over(app, cli):
    result = cli("enqueue", "add", "[1]", "--wait", "--timeout", "0", "--json")

    assert result.exit_code == 4
    assert answer(result)["run"]["state"] == "queued"
    assert error(result)["kind"] == "WorkerTimeout"


@REFUSED_BEFORE_THE_STORE
def test_timeout_without_wait_is_refused(app, cli):
    assert cli("enqueue", "add", "[1]", "--timeout", "1s").exit_code == 2


def test_redacted_arguments_are_not_in_the_answer(app, cli):
    result = cli("enqueue", "log_in", '["ada", "s3cret"]', "--json")

    assert "s3cret" not in result.output
    assert answer(result)["run"]["arguments"]["kwargs"] == {"user": "ada", "secret": "***"}
