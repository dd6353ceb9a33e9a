"""`duly doctor`, `duly health` and `duly config`."""

import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from duly import Duly
from duly.clock import MICROSECONDS
from duly.limits import TICK_BATCH
from duly.store.ops.upkeep import Tick
from duly.store.postgres.diagnostics import diagnose as of_postgres
from duly.store.sqlite.diagnostics import diagnose as of_sqlite
from tests.cli.conftest import answer, error
from tests.store.conformance.stores import opened_tables


@pytest.fixture
def working(app: Duly, url: str) -> Iterator[None]:
    """A worker with the same tasks on its own store, because commands close the application's."""
    other = Duly(url)
    other.registry = app.registry
    with other.worker():
        yield
    other.close()


def test_the_doctor_finds_nothing_wrong_with_a_good_store_and_a_worker(working, cli):
    result = cli("doctor", "--json")

    found = answer(result)
    assert (result.exit_code, found["ok"]) == (0, True), found
    assert {each["level"] for each in found["findings"]} == {"ok"}
    assert {"schema", "store", "engine", "durability", "clock", "workers"} <= {
        each["check"] for each in found["findings"]
    }


def test_the_doctor_names_runs_without_a_worker_and_a_remedy(app, cli, run_of):
    run_of("add", 1)
    other = Duly(app.url)
    other.task(name="other:task")(lambda: None)
    with other.worker():
        other.store.do(Tick(TICK_BATCH))
        result = cli("doctor")
    other.close()

    assert result.exit_code == 0
    words = "1 run of orders:add waits in queue 'default', and no live worker knows the task"
    assert f"warning: {words}" in result.stdout
    assert "orders:send is defined here, but no live worker knows it" in result.stdout
    assert "task: start a worker that imports the module of the task" in result.stdout


def test_the_doctor_suggests_a_remedy_for_mismatched_tables(app, cli, url):
    with opened_tables(url) as tables:
        tables.execute("DELETE FROM duly_schema WHERE version > 3")

    result = cli("doctor", "-q")

    assert result.exit_code == 1
    assert "Run `duly db migrate`" in result.stdout


def test_the_doctor_names_a_missing_file(folder, cli):
    result = cli("doctor", "--json")

    assert result.exit_code == 1
    assert f"no database at {folder / 'duly.db'}" in answer(result)["findings"][0]["text"]


@pytest.mark.stores("sqlite-wal")
def test_the_doctor_warns_of_a_file_that_other_users_can_read(app, cli):
    app.store.path.chmod(0o644)

    assert "file mode: other users of this machine can read" in cli("doctor", "-q").stdout


@pytest.mark.stores("sqlite-wal")
def test_the_doctor_warns_of_a_folder_that_other_users_can_write(app, cli):
    app.store.path.parent.chmod(0o1777)

    assert "every user of this machine can put files next to" in cli("doctor", "-q").stdout


@pytest.mark.stores("postgres")
def test_the_doctor_reports_a_wrong_clock(app, cli, url):
    with opened_tables(url) as tables:
        tables.execute(
            "CREATE OR REPLACE FUNCTION duly_now() RETURNS timestamptz LANGUAGE sql STABLE"
            " AS $$SELECT now() + interval '1 minute'$$"
        )

    result = cli("doctor", "-q").stdout

    assert " ahead of this host's" in result
    assert "run NTP on both" in result


@pytest.mark.stores("pgbouncer")
def test_the_doctor_names_a_pooler_and_a_remedy(app, cli):
    result = cli("doctor", "--json")

    (found,) = [each for each in answer(result)["findings"] if each["check"] == "pooler"]
    assert (result.exit_code, found["level"]) == (0, "warning")
    assert "workers get no notifications and poll every second" in found["text"]
    assert "name the server itself in DULY_URL" in found["remedy"]


@pytest.mark.parametrize(
    ("journal", "version", "level"),
    [
        ("wal", (3, 40, 1), "error"),
        ("wal", (3, 51, 3), "ok"),
        ("delete", (3, 40, 1), "ok"),
    ],
)
def test_the_doctor_names_a_journal_that_can_lose_commits(
    folder, cli, monkeypatch, journal, version, level
):
    with closing(sqlite3.connect(folder / "duly.db")) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("CREATE TABLE application_data (note)")
    cli("db", "migrate")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    result = cli("doctor", "--json")

    (found,) = [each for each in answer(result)["findings"] if each["check"] == "engine"]
    assert (result.exit_code, found["level"]) == (int(level == "error"), level)
    assert ("use SQLite 3.51.3 or newer" in found["remedy"]) == (level == "error")


@pytest.mark.parametrize(("synchronous", "level"), [(0, "error"), (1, "error"), (2, "ok")])
def test_the_doctor_names_a_file_whose_commits_do_not_reach_the_disk(tmp_path, synchronous, level):
    file = tmp_path / "duly.db"
    file.touch()

    findings = of_sqlite(lambda *_: [("3.51.3", "wal", synchronous, 0)], file)

    (found,) = [each for each in findings if each.check == "durability"]
    assert found.level == level
    assert ("leave it at FULL" in found.remedy) == (level == "error")


@pytest.mark.parametrize(
    ("fsync", "pages", "durable", "remedy"),
    [
        ("on", "on", "on", ""),
        ("on", "on", "local", ""),
        ("off", "on", "on", "set fsync and full_page_writes on"),
        ("on", "off", "on", "set fsync and full_page_writes on"),
        ("on", "on", "off", "synchronous_commit was turned off"),
    ],
)
def test_the_doctor_names_a_server_that_may_lose_commits(fsync, pages, durable, remedy):
    facts = ("18.0", fsync, pages, durable, "on", False, 97, 1, 0)

    findings = of_postgres(lambda sql, _: [facts] if "fsync" in sql else [], is_pooled=False)

    (found,) = [each for each in findings if each.check == "durability"]
    assert found.level == ("error" if remedy else "ok")
    assert found.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("used", "workers", "level"), [(20, 10, "ok"), (90, 10, "warning"), (20, 16, "warning")]
)
def test_the_doctor_compares_the_connections_of_the_workers_with_those_that_the_server_allows(
    used, workers, level
):
    facts = ("18.0", "on", "on", "on", "on", False, 97, used, workers)

    findings = of_postgres(lambda sql, _: [facts] if "fsync" in sql else [], is_pooled=False)

    (found,) = [each for each in findings if each.check == "connections"]
    assert found.level == level
    assert found.text == (
        f"{used} of 97 are in use, and {workers} live workers need up to {5 * workers}"
    )


@pytest.mark.stores("postgres")
def test_duly_enables_synchronous_commit_on_a_server_that_disables_it(working, cli, url):
    with opened_tables(url) as tables:
        tables.execute(
            f'ALTER DATABASE "{url.rpartition("/")[2].partition("?")[0]}"'
            " SET synchronous_commit = off"
        )

    result = cli("doctor", "--json")

    (found,) = [each for each in answer(result)["findings"] if each["check"] == "durability"]
    assert (result.exit_code, found["level"]) == (0, "ok")
    assert "synchronous_commit on" in found["text"]


# -- health --


def test_health_requires_a_live_worker(app, cli):
    result = cli("health")

    assert (result.exit_code, result.stdout) == (1, "no worker is live\n")
    assert cli("health", "--no-worker", "-q").exit_code == 0


def test_health_is_good_while_a_worker_keeps_up(working, cli):
    result = cli("health", "--max-age", "60s", "--max-depth", "1000", "--json")

    assert (result.exit_code, answer(result)["ok"]) == (0, True)


def test_health_names_a_queue_that_is_too_deep(app, cli, run_of, url, monkeypatch):
    for number in range(3):
        run_of("add", number)
    run_of("send", "x")
    app.queues.pause("mail")
    now = app.store.now()
    monkeypatch.setattr(type(app.store), "now", lambda _store: now + 90 * MICROSECONDS)

    result = cli("health", "--no-worker", "--max-age", "1m", "--max-depth", "2")

    assert result.exit_code == 1
    assert result.stdout == (
        "a run of queue 'default' has been ready for 1 min 30 s\n"
        "queue 'default' has more than 2 ready runs\n"
    )


def test_health_refuses_a_depth_above_the_counting_cap(app, cli):
    refused = cli("health", "--no-worker", "--max-depth", "10001")

    assert (refused.exit_code, "0<=x<=10000" in refused.stderr) == (2, True)
    assert cli("health", "--no-worker", "--max-depth", "10000").exit_code == 0


def test_health_of_a_database_that_is_away_is_a_temporary_failure(folder, cli):
    assert cli("health", "--url", "postgresql://nobody@127.0.0.1:1/none").exit_code == 75


# -- config --


def test_unlimited_retention_is_shown_as_forever(folder, cli, monkeypatch):
    monkeypatch.setenv("DULY_RETENTION", "forever")

    found = answer(cli("config", "--json"))["settings"]["retention"]

    assert found == {"value": "forever", "from": "DULY_RETENTION"}


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:p/hunter2@host/shop",
        "postgresql://ann:p@hunter2@host/shop",
        "postgresql:/ann:hunter2@host/shop",
        "postgresql://ann:hunter2",
        "postgresql://host/shop?sslpassword=hunter2",
        "host=h user=ann password=hunter2",
        "redis://:p@hunter2@host/0",
        "sqlite://ann:hunter2@host/shop.db",
    ],
)
@pytest.mark.parametrize("command", ["config", "doctor", "health", "runs list", "db status"])
def test_no_command_shows_the_password_of_a_malformed_address(
    folder, cli, monkeypatch, url, command
):
    monkeypatch.setenv("DULY_URL", url)

    for options in ([], ["--json"], ["-v"]):
        result = cli(*command.split(), *options)
        assert "hunter2" not in f"{result.stdout}{result.stderr}"


def test_config_shows_every_setting_and_where_it_came_from(folder, cli, monkeypatch):
    (folder / "pyproject.toml").write_text("[tool.duly]\nconcurrency = 4\napp = 'orders:app'\n")
    monkeypatch.setenv("DULY_URL", "postgresql://ann:secret@host/shop?password=x")
    monkeypatch.setenv("DULY_DASHBOARD_TOKEN", "s3cret")

    found = answer(cli("config", "--json"))["settings"]

    assert found["concurrency"] == {"value": 4, "from": str(folder / "pyproject.toml")}
    assert found["url"] == {
        "value": "postgresql://ann:***@host/shop?password=***",
        "from": "DULY_URL",
    }
    assert found["dashboard_token"] == {"value": "***", "from": "DULY_DASHBOARD_TOKEN"}
    assert found["dashboard_users"] == {"value": None, "from": "default"}
    assert found["lease"] == {"value": 15.0, "from": "default"}
    assert "orders" in sys.modules
    assert "DULY_URL" in cli("config").stdout
    assert "concurrency=4" in cli("config", "-q").stdout.splitlines()
    assert cli("config", "--url", "sqlite:///x.db").stdout.splitlines()[1].split() == [
        "url",
        os.path.abspath("x.db"),  # noqa: PTH100 - as the command shows it
        "option",
    ]


def test_a_setting_that_does_not_exist_is_a_usage_error_everywhere(folder, cli, monkeypatch):
    monkeypatch.setenv("DULY_CONCURENCY", "4")

    result = cli("config", "--json")

    assert (result.exit_code, error(result)["kind"]) == (2, "BadOption")
    assert "did you mean DULY_CONCURRENCY" in error(result)["message"]
