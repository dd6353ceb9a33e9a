"""`duly audit`, `duly db check/prune/backup` and `duly restore`."""

import shutil
import sys
from datetime import timedelta

import pytest

from duly import Duly
from duly.core.instants import iso
from duly.errors import StoreRefused
from duly.store.store_factory import sqlite_path
from tests.cli.conftest import answer, error
from tests.servers.kinds import POSTGRES_KINDS
from tests.store.conformance.stores import opened_tables
from tests.store.conformance.verbs import claim, register


def test_the_audit_of_a_good_database_lists_the_checked_rules(app, cli, run_of, drain, dead):
    run_of("add", 1, delay=3600)

    said = cli("audit")
    found = answer(cli("audit", "--json"))

    assert said.exit_code == 0
    assert "Every accepted run is live, finished or pruned" in said.stdout
    counts = {"queued": 0, "running": 0, "waiting": 1, "finished": 3, "accepted": 4, "pruned": 0}
    assert found["runs"] == counts
    assert (found["ok"], found["flaws"]) == (True, [])


def test_the_audit_names_violations_and_ends_with_1(app, cli, url, dead):
    with opened_tables(url) as tables:
        tables.execute("UPDATE duly_history SET claim_number = 0")

    said = cli("audit", "-q")

    assert said.exit_code == 1
    assert f"{dead[0]} was ended by an attempt, but was never claimed (ended_without_claim)." in (
        said.stdout.splitlines()
    )
    assert len(answer(cli("audit", "--json"))["flaws"]) == 3


def test_the_database_checks_itself(app, cli):
    result = cli("db", "check", "--json")

    assert (result.exit_code, answer(result)["ok"]) == (0, True)
    assert "integrity" in {each["check"] for each in answer(result)["findings"]}


@pytest.mark.parametrize("store_kind", POSTGRES_KINDS)
def test_indexes_are_checked_if_the_server_supports_it(app, cli, url):
    with opened_tables(url) as tables:
        if not tables.rows("SELECT 1 FROM pg_available_extensions WHERE name = 'amcheck'"):
            pytest.skip("this PostgreSQL comes without amcheck")
        tables.execute("CREATE EXTENSION amcheck")

    assert "amcheck read" in cli("db", "check").stdout


def test_prune_deletes_old_runs_after_a_confirmation(app, cli, dead, drain):
    refused = cli("db", "prune", "--older-than", "0", "--dead-older-than", "0")
    kept = answer(cli("db", "prune", "--json", "--yes"))
    pruned = cli("db", "prune", "--older-than", "0", "--dead-older-than", "0", "--yes")

    assert (refused.exit_code, "Type prune to continue" in refused.stderr) == (1, True)
    assert "type prune" in cli("db", "prune", stdin="yes\n").stderr
    assert kept == {"pruned": 0}
    said = app.store.list_audit_entries(None, 5)[0]
    assert (said.act, said.subject) == (
        "prune",
        "history older than 0 s, dead letters older than 0 s",
    )
    assert pruned.stdout == "Deleted 3 finished runs.\n"
    assert app.runs.list() == []
    assert error(cli("db", "prune", "--json"))["kind"] == "UsageError"


@pytest.mark.stores("postgres")
def test_a_backup_of_postgresql_is_refused_with_a_hint_at_pg_dump(app, cli, tmp_path):
    result = cli("db", "backup", str(tmp_path / "copy"))

    assert result.exit_code == 1
    assert "pg_dump" in result.stderr


def restore_since(cli, app, made_at):
    """Run `duly restore`, as after restoring a backup of this instant."""
    return cli("restore", "--since", made_at, "--yes")


def test_runs_that_may_have_started_since_a_backup_are_parked_and_not_repeated(
    app, cli, run_of, drain
):
    due, later = run_of("add", 1), run_of("add", 2, delay=3600)
    app.schedules.add("hourly", sys.modules["orders"].add, every=timedelta(hours=1), args=(1,))
    made_at = iso(app.store.now())
    new = run_of("add", 3)

    result = restore_since(cli, app, made_at)
    drain()

    assert result.stdout.startswith("1 run interrupted, 0 schedules paused.\n")
    assert "1 runs were created after that and are unchanged" in result.stdout
    assert (due.refresh().state, due.cause) == ("interrupted", "restored")
    assert (later.refresh().state, new.refresh().state) == ("queued", "succeeded")
    assert "restored from a backup of" in cli("dead", "list").stdout
    assert [act.act for act in app.store.list_audit_entries(due.id, 5)] == ["set aside"]
    assert answer(cli("audit", "--json"))["ok"]
    due.retry()
    drain()
    assert due.refresh().state == "succeeded"


def test_a_schedule_that_came_due_since_a_backup_is_paused_and_does_not_fire(app, cli, url):
    app.schedules.add("often", sys.modules["orders"].add, every=timedelta(seconds=1), args=(1,))
    with opened_tables(url) as tables:
        tables.execute("UPDATE duly_schedules SET next_at = created_at, look_at = created_at")
    made_at = iso(app.store.now())

    result = restore_since(cli, app, made_at)
    app.worker().drain(timeout=20)

    assert "1 schedule paused" in result.stdout
    assert app.runs.list() == []
    assert answer(cli("schedules", "list", "--json"))["schedules"][0]["state"] == "paused"


def test_a_restore_under_a_live_worker_or_to_a_future_time_is_refused(app, cli, url, run_of):
    run = run_of("add", 1, delay=3600)
    other = Duly(url)
    with other.worker():
        busy = cli("restore", "--since", "1h", "--yes")
    future = cli("restore", "--since", "2090-01-01T00:00Z", "--yes")
    other.close()

    assert (busy.exit_code, "stop all workers first" in busy.stderr) == (1, True)
    assert future.exit_code == 2
    assert cli("restore", "--since", "1h").exit_code == 1
    assert run.refresh().state == "queued"


@pytest.mark.parametrize("is_known_dead", [False, True])
def test_runs_that_were_running_or_waiting_at_the_backup_are_parked(
    app, cli, url, run_of, is_known_dead
):
    run_of("add", 1)
    waits = run_of("add", 2, delay=3600)
    sleeps = run_of("add", 3, delay=3600)
    with opened_tables(url) as tables:
        register(app.store)
        (held,) = claim(app.store, tasks=("orders:add",))
        sql = """INSERT INTO duly_steps (run_id, name, kind, done, awaited, claim_number, began_at)
                 SELECT id, 'w', 'wait', <no>, 'paid', 0, created_at FROM duly_waiting
                  WHERE id = '<id>'"""
        no = "0" if url.startswith("sqlite") else "false"
        tables.execute(sql.replace("<no>", no).replace("<id>", waits.id))
        if is_known_dead:
            tables.execute("UPDATE duly_workers SET state = 'dead', stopped_at = started_at")
        else:
            tables.execute("UPDATE duly_workers SET lease_seconds = -1")
    made_at = iso(app.store.now())

    result = restore_since(cli, app, made_at)

    assert result.stdout.startswith("2 runs interrupted")
    assert app.runs.get(held.run_id).cause == "restored"
    assert (waits.refresh().state, sleeps.refresh().state) == ("interrupted", "queued")
    assert answer(cli("audit", "--json"))["ok"]


@pytest.mark.stores("sqlite-wal")
def test_a_backup_that_is_restored_repeats_no_run(app, cli, run_of, drain, folder, url):
    before = run_of("add", 1)
    copy = answer(cli("db", "backup", "copy.db", "--json"))
    again = cli("db", "backup", "copy.db")
    nowhere = cli("db", "backup", "nowhere/copy.db")
    drain()
    assert before.refresh().state == "succeeded"
    app.close()
    file = sqlite_path(url)
    for rest in ("-wal", "-shm"):
        file.with_name(file.name + rest).unlink(missing_ok=True)
    shutil.copyfile(folder / "copy.db", file)

    restore_since(cli, app, copy["made_at"])
    drain()

    assert (folder / "copy.db").stat().st_mode & 0o777 == 0o600
    assert (nowhere.exit_code, "No such file or directory" in nowhere.stderr) == (1, True)
    assert (again.exit_code, "already exists" in again.stderr) == (1, True)
    assert before.refresh().state == "interrupted"


@pytest.mark.stores("sqlite-wal")
def test_a_run_that_is_enqueued_just_before_the_copy_is_parked(app, cli, run_of, monkeypatch):
    copy, made = type(app.store).back_up, []

    def back_up(store, file):
        made.append(run_of("add", 1))
        copy(store, file)

    monkeypatch.setattr(type(app.store), "back_up", back_up)
    made_at = answer(cli("db", "backup", "copy.db", "--json"))["made_at"]

    result = answer(cli("restore", "--since", made_at, "--yes", "--json"))
    again = answer(cli("restore", "--since", made_at, "--yes", "--json"))

    assert result == {"runs": 1, "schedules": 0, "newer": 0}
    assert again == {"runs": 0, "schedules": 0, "newer": 0}
    assert made[0].refresh().state == "interrupted"


@pytest.mark.stores("sqlite-wal")
def test_a_file_that_was_moved_while_nothing_ran_continues_unchanged(app, cli, run_of, drain, url):
    drain()
    waiting = run_of("add", 1)
    app.close()
    file = sqlite_path(url)
    copy = file.with_name("other.db")
    shutil.copyfile(file, copy)
    copy.chmod(0o600)
    copy.replace(file)

    neither = cli("restore", "--yes")
    both = cli("restore", "--since", "1h", "--nothing-ran", "--yes")
    with pytest.raises(StoreRefused, match="--nothing-ran"):
        drain()
    result = cli("restore", "--nothing-ran")
    drain()

    assert (neither.exit_code, both.exit_code) == (2, 2)
    assert "Workers may start" in result.stdout
    assert waiting.refresh().state == "succeeded"
