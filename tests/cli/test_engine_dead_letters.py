"""`duly dead` on dead letters of other engines: lists, shows, retries and discards them."""

import os
import re
import subprocess
import sys
from contextlib import closing

import pytest

from duly.guard import Guard
from duly.guard.dead_letters import DeadLetterDraft, GuardDeadLetters
from tests.cli.conftest import answer, error
from tests.integrations.celery.workers import CeleryWorker
from tests.servers.processes import wait_until

BANK = '''
"""A Celery application."""

import os
import re
from pathlib import Path

from duly.integrations.celery import Celery

app = Celery("bank", broker=os.environ["BANK_BROKER"], guard=os.environ["BANK_GUARD"])
app.conf.update(broker_connection_retry_on_startup=True, task_publish_retry=False)
notes = Path(os.environ.get("BANK_NOTES", "/nowhere"))


@app.task(shared=False)  # Others would get it too: here this module is imported again and again.
def pay(order_id: int, card: str = "") -> None:
    if not notes.exists():
        raise ValueError("no such account")
    with notes.open("a") as file:
        file.write(f"paid {order_id}\\n")
'''

UNKNOWN = "00000000-0000-7000-8000-000000000000"
NOTHING_IS_SENT = "memory://"


@pytest.fixture
def bank(folder, url, monkeypatch):
    """Names a Celery application on the store of this test. Its messages are lost."""
    (folder / "bank.py").write_text(BANK)
    monkeypatch.setenv("BANK_BROKER", NOTHING_IS_SENT)
    monkeypatch.setenv("BANK_GUARD", url)
    yield "bank:app"
    if "bank" in sys.modules:
        sys.modules["bank"].app.close()


@pytest.fixture
def write(app):
    """Writes a dead letter, and returns its id."""
    letters = GuardDeadLetters(lambda: app.store)

    def write_one(**fields):
        known = {
            "engine": "celery",
            "task": "bank.pay",
            "arguments": '[[7],{"card":"4111-2222-9"}]',
            "cause": "permanent",
            "error": "ValueError: no such account\nand more",
            "traceback": "Traceback (most recent call last):\n  …\nValueError: no such account",
            "attempts": 4,
            "key": "bank.pay:abc",
            "queue": "celery",
            "options": '{"routing_key": "celery"}',
            "application": "bank",
            "fingerprint": "f1",
        }
        return letters.put(DeadLetterDraft(**known | fields))

    return write_one


def letter_states(app, ids):
    letters = GuardDeadLetters(lambda: app.store)
    return [letters.get(letter_id).state for letter_id in ids]


# -- reading --


def test_the_list_has_runs_and_dead_letters_of_engines(cli, dead, write):
    letters = [write(), write(error="KeyError: 'sku'")]

    people = cli("dead", "list").stdout
    found = answer(cli("dead", "list", "--json"))

    assert [run["id"] for run in found["runs"]] == dead[::-1]
    assert [letter["id"] for letter in found["letters"]] == letters[::-1]
    assert cli("dead", "list", "-q").stdout.split() == dead[::-1] + letters[::-1]
    assert "no server answers order-2" in people
    heading, *rows = people.partition("\n\n")[2].splitlines()
    assert heading.split() == ["ID", "ENGINE", "TASK", "CAUSE", "ERROR", "ATTEMPTS", "AGE"]
    assert rows[1].split()[:4] == [letters[0], "celery", "bank.pay", "permanent"]
    assert rows[1].split()[4:] == ["ValueError:", "no", "such", "account", "4", "now"]


def test_one_cursor_pages_through_runs_and_dead_letters_of_engines(cli, dead, write):
    letters = [write(), write()]
    found, cursor = [], ()

    for _ in range(3):
        page = answer(cli("dead", "list", "--json", "--limit", "2", *cursor))
        found += [each["id"] for each in (*page["letters"], *page["runs"])]
        cursor = ("--cursor", page["cursor"])

    assert found == letters[::-1] + dead[::-1]
    assert page["cursor"] is None


def test_dead_letters_of_engines_alone_are_listed_without_a_table_of_runs(cli, app, write):
    letter = write()

    assert cli("dead", "list").stdout.splitlines()[1].split()[0] == letter


def test_arguments_of_a_dead_letter_are_shown_only_on_request(cli, app, write):
    letter = write()

    for command in (("list",), ("show", letter)):
        assert "4111-2222-9" not in cli("dead", *command).stdout
        assert "4111-2222-9" not in cli("dead", *command, "--json").stdout
    (listed,) = answer(cli("dead", "list", "--json", "--show-args"))["letters"]
    shown = answer(cli("dead", "show", letter, "--json", "--show-args"))["letter"]

    assert listed == shown
    assert shown["arguments"] == {"args": [7], "kwargs": {"card": "4111-2222-9"}}
    assert not shown["arguments_hidden"]
    assert 'bank.pay(7, card="4111-2222-9")' in cli("dead", "show", letter, "--show-args").stdout
    assert '7, card="4111-2222-9"' in cli("dead", "list", "--show-args").stdout


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("--engine", "celery"), 2),
        (("--engine", "rq"), 1),
        (("--task", "bank.pay"), 2),
        (("--since", "1h"), 3),
        (("--since", "2100-01-01T00:00Z"), 0),
        (("--state", "failed"), 0),
        (("--queue", "celery"), 0),
        (("--tag", "tenant=x"), 0),
        (("--fingerprint", "abc"), 0),
        (("--fingerprint", "f1"), 3),
    ],
)
def test_filters_narrow_or_exclude_dead_letters_of_engines(cli, app, write, filters, count):
    for fields in ({}, {}, {"engine": "rq", "task": "bank.audit"}):
        write(**fields)

    assert len(answer(cli("dead", "list", "--json", *filters))["letters"]) == count


def test_the_engine_filter_excludes_runs(cli, dead, write):
    letter = write()

    found = answer(cli("dead", "list", "--json", "--engine", "celery"))
    mixed = cli("dead", "list", "--engine", "celery", "--queue", "mail")

    assert (found["runs"], [each["id"] for each in found["letters"]]) == ([], [letter])
    assert mixed.exit_code == 2


def test_groups_have_runs_and_dead_letters_of_engines(cli, dead, write):
    sample = [write(), write(), write(engine="rq"), write(), write()][-1]

    groups = answer(cli("dead", "groups", "--json"))["groups"]
    people = cli("dead", "groups").stdout.splitlines()

    assert [(group["count"], group["engine"]) for group in groups] == [
        (4, "celery"), (3, None), (1, "rq"),
    ]  # fmt: skip
    assert groups[0]["sample_id"] == sample
    assert groups[0]["fingerprint"] == "f1"
    assert people[1].split()[:2] == ["4", "bank.pay"]
    of_rq = answer(cli("dead", "groups", "--json", "--engine", "rq"))["groups"]
    assert [group["engine"] for group in of_rq] == ["rq"]


def test_groups_of_a_celery_application_are_its_dead_letters(cli, dead, write, bank):
    write()

    (group,) = answer(cli("--app", bank, "dead", "groups", "--json"))["groups"]

    assert (group["task"], group["count"]) == ("bank.pay", 1)


def test_dead_letters_in_redis_are_found_by_its_address(cli, redis_url, folder):
    with closing(Guard(redis_url, namespace="eu")) as guard:
        letter = guard.letters.put(
            DeadLetterDraft("celery", "bank.pay", "[[7],{}]", "permanent", "no")
        )

        listed = cli("--url", redis_url, "dead", "list", "--json")
        grouped = cli("--url", redis_url, "dead", "groups", "-q")
        retried = cli("--url", redis_url, "dead", "retry", letter, "--yes")
        ended = cli("--url", redis_url, "dead", "discard", letter, "--reason", "r", "--yes")

        (found,) = answer(listed)["letters"]
        assert (found["id"], found["namespace"]) == (letter, "eu")
        assert grouped.exit_code == 0
        assert (retried.exit_code, ended.stdout) == (2, "discarded 1, skipped 0\n")
        assert guard.letters.get(letter).reason == "r"


def test_show_prints_all_details_of_a_dead_letter(cli, app, write):
    letter = write()
    cli("dead", "discard", letter, "--reason", "closed account", "--yes")

    shown = cli("dead", "show", letter).stdout

    said = ("celery", "bank.pay", "permanent", "discarded", "bank.pay:abc", "by tester", "f1")
    for part in (*said, "closed account"):
        assert part in shown
    assert "Traceback (most recent call last):" in shown


def test_dead_show_prints_a_dead_run_like_runs_show(cli, dead):
    shown = cli("dead", "show", dead[0])

    assert shown.exit_code == 0
    assert "no server answers order-0" in shown.stdout
    assert "attempt 1: raised" in shown.stdout
    assert without_ages(shown.stdout) == without_ages(cli("runs", "show", dead[0]).stdout)
    assert answer(cli("dead", "show", dead[0], "--json"))["run"]["id"] == dead[0]


def without_ages(text: str) -> str:
    """Remove ages, which may differ between two commands."""
    return re.sub(r" \((now|[^()]* ago)\) *", " ", text)


@pytest.mark.parametrize("letter_id", [UNKNOWN, "nonsense", "a\x00b"])
def test_an_unknown_dead_letter_is_not_found(cli, app, letter_id):
    result = cli("dead", "show", letter_id, "--json")

    assert result.exit_code == 3
    assert error(result)["kind"] == "LetterNotFound"


def test_control_characters_of_a_dead_letter_cannot_reach_the_terminal(cli, app, write):
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e[red]boo"
    letter = write(
        error=hostile,
        traceback=f"{hostile}\n{hostile}",
        task=f"bank.{hostile}",
        key=hostile,
        queue=hostile,
        cause=hostile,
        arguments=f'[["{hostile.encode("unicode_escape").decode()}"],{{}}]',
    )

    for command in (("list",), ("show", letter), ("show", letter, "--show-args")):
        for form in ((), ("--json",)):
            printed = cli("dead", *command, *form).stdout
            assert "owned" in printed
            assert printed.replace("\n", "").isprintable()


# -- actions --


def test_a_dead_letter_is_discarded_with_or_without_its_application(cli, app, write, bank):
    letters = [write(), write(), write(engine="rq")]

    by_id = cli("dead", "discard", letters[0], "--reason", "r", "--yes", "--json")
    by_engine = cli(
        "--app", bank, "dead", "discard", "--engine", "celery", "--reason", "r", "--yes"
    )
    again = cli("dead", "discard", letters[0], "--reason", "r", "--yes")

    assert answer(by_id) == {"discarded": 1, "skipped": 0, "left": 0, "dry_run": False}
    assert by_engine.stdout == "discarded 1, skipped 0\n"
    assert again.stdout == "discarded 0, skipped 1\n"
    assert letter_states(app, letters) == ["discarded", "discarded", "open"]


def test_runs_and_dead_letters_of_engines_are_discarded_together(cli, app, dead, write):
    letter = write()

    result = cli("dead", "discard", dead[0], letter, "--reason", "r", stdin="y\n")

    assert "Discard 2 dead letters?" in result.stderr
    assert result.stdout == "discarded 2, skipped 0\n"
    assert app.runs.get(dead[0]).state == "cancelled"
    assert letter_states(app, [letter]) == ["discarded"]
    assert cli("dead", "discard", "--all", "--reason", "r", "--yes", "-q").stdout == ""
    assert cli("dead", "list", "-q").stdout == ""


def test_the_application_retries_a_dead_letter(cli, app, write, bank):
    letters = [write(), write(), write(engine="rq")]

    counted = cli("--app", bank, "dead", "retry", "--all", "--dry-run", "--json")
    by_id = cli("--app", bank, "dead", "retry", letters[0], "--yes")
    again = cli("--app", bank, "dead", "retry", letters[0], "--yes", "--json")
    rest = cli("--app", bank, "dead", "retry", "--all", "--yes", "--rate", "1000")

    assert answer(counted)["matching"] == 2
    assert by_id.stdout == "retried 1, skipped 0\n", by_id.stderr
    assert answer(again) == {"retried": 0, "skipped": 1, "left": 0, "dry_run": False}
    assert rest.stdout == "retried 1, skipped 0, not retried 1\n"
    assert "proj.rq:app dead retry --engine rq" in rest.stderr
    assert letter_states(app, letters) == ["replayed", "replayed", "open"]


@pytest.mark.parametrize("has_app", [True, False])
def test_without_the_application_the_right_command_is_named(
    cli, app, write, dead, monkeypatch, has_app
):
    if not has_app:
        monkeypatch.delenv("DULY_APP")
    letter = write()

    by_id = cli("dead", "retry", dead[0], letter, "--yes")
    by_engine = cli("dead", "retry", "--engine", "celery", "--yes")
    everything = cli("dead", "retry", "--all", "--yes")

    assert (by_id.exit_code, by_engine.exit_code, everything.exit_code) == (2, 2, 0)
    assert f"duly --app proj.celery:app dead retry {letter}" in by_id.stderr
    assert "duly --app proj.celery:app dead retry --engine celery" in by_engine.stderr
    assert everything.stdout == "retried 3, skipped 0, not retried 1\n"
    assert "1 dead letter can be retried only by its celery" in everything.stderr
    assert letter_states(app, [letter]) == ["open"]


def test_an_unknown_id_is_reported_before_any_dead_letter_changes(cli, app, write, bank):
    letter = write()

    result = cli("--app", bank, "dead", "retry", letter, UNKNOWN, "--yes", "--json")

    assert result.exit_code == 3
    assert error(result)["kind"] == "LetterNotFound"
    assert letter_states(app, [letter]) == ["open"]


def test_a_dead_letter_that_cannot_be_sent_does_not_block_the_rest(cli, app, write, bank):
    letters = [write(), write(task="bank.gone"), write()]

    by_id = cli("--app", bank, "dead", "retry", letters[1], "--yes")
    everything = cli("--app", bank, "dead", "retry", "--all", "--yes")

    assert (by_id.exit_code, everything.exit_code) == (1, 1)
    for result in (by_id, everything):
        assert f"letter {letters[1]} names task 'bank.gone'" in result.stderr
        assert "aliases" not in result.stderr
    assert everything.stdout == "retried 2, skipped 0, not retried 1\n"
    assert letter_states(app, letters) == ["replayed", "open", "replayed"]


def test_an_unavailable_broker_causes_an_error_of_one_line(cli, app, write, bank, monkeypatch):
    monkeypatch.setenv("BANK_BROKER", "redis://127.0.0.1:1/0")
    letter = write()

    result = cli("--app", bank, "dead", "retry", letter, "--yes")

    assert result.exit_code == 1
    assert f"letter {letter} was not sent again: OperationalError" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert letter_states(app, [letter]) == ["open"]


def test_a_task_filter_that_matches_nothing_gets_a_hint(cli, app, write, bank):
    write()

    result = cli("--app", bank, "dead", "list", "--task", "pay")

    assert "dead letters of bank.pay." in result.stderr


# -- Celery applications --


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list"),
        ("queues", "list"),
        ("schedules", "list"),
        ("enqueue", "pay"),
    ],
)
def test_commands_about_runs_are_refused_for_a_celery_application(cli, app, bank, command):
    result = cli("--app", bank, *command)

    assert result.exit_code == 2
    assert "bank:app is a Celery application" in result.stderr
    assert "no runs" in result.stderr


def test_a_celery_application_has_dead_letters_and_no_runs(cli, dead, write, bank):
    letter = write()

    assert cli("--app", bank, "dead", "list", "-q").stdout.split() == [letter]
    assert cli("--app", bank, "dead", "show", letter).exit_code == 0


def test_a_plain_celery_application_is_accepted(cli, app, write, folder):
    (folder / "plain.py").write_text("from celery import Celery\napp = Celery('plain')\n")
    letter = write()

    found = cli("--app", "plain:app", "dead", "list", "-q")

    assert found.stdout.split() == [letter], "DULY_URL selects the store of its dead letters"


@pytest.mark.stores("sqlite-wal")
def test_the_db_commands_find_the_database_of_a_celery_application(cli, app, bank, url):
    status = cli("--app", bank, "db", "status", "--json")

    assert status.exit_code == 0
    assert url.rpartition("/")[2] in status.stdout


@pytest.mark.stores("sqlite-wal")
def test_a_missing_database_of_a_celery_application_is_not_created(cli, bank, folder, monkeypatch):
    monkeypatch.setenv("BANK_GUARD", "sqlite:///other.db")

    result = cli("--app", bank, "dead", "list")

    assert result.exit_code == 1
    assert "there is no database" in result.stderr
    assert not (folder / "other.db").exists()


@pytest.mark.process
@pytest.mark.stores("sqlite-wal")
def test_celery_is_imported_only_for_a_celery_application(folder, app, write):
    program = (
        "import sys\nfrom duly.cli import commands\n"
        "commands(['dead', 'list'], standalone_mode=False)\n"
        "print('celery' in sys.modules)\n"
    )
    write()

    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=50
    )

    assert done.stdout.splitlines()[-1] == "False"


# -- end to end --


@pytest.mark.process
def test_a_retried_dead_letter_runs(cli, app, bank, folder, redis_url, monkeypatch):
    check_end_to_end(cli, bank, folder, redis_url, monkeypatch)


@pytest.mark.process
def test_a_retried_dead_letter_in_redis_runs(cli, folder, redis_url, tmp_path, monkeypatch):
    (folder / "bank.py").write_text(BANK)
    monkeypatch.setenv("BANK_GUARD", redis_url)

    check_end_to_end(cli, "bank:app", folder, redis_url, monkeypatch)

    sys.modules["bank"].app.close()


def check_end_to_end(cli, bank, folder, redis_url, monkeypatch):
    notes = folder / "notes"
    environment = {
        "BANK_BROKER": redis_url,
        "BANK_NOTES": str(notes),
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def letters():
        return cli("--app", bank, "dead", "list", "-q").stdout.split()

    cli("--app", bank, "dead", "list")
    with CeleryWorker(folder, environment, application="bank"):
        sys.modules["bank"].pay.delay(7, card="4111-2222-9")
        wait_until(lambda: len(letters()) == 1, seconds=30, what="it died")
        notes.touch()

        result = cli("--app", bank, "dead", "retry", *letters(), "--yes")

        assert result.stdout == "retried 1, skipped 0\n", result.stderr
        wait_until(lambda: notes.read_text() == "paid 7\n", seconds=30, what="it ran")
        assert letters() == []
