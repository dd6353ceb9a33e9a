"""A store that cannot be used raises a typed error with advice at first use."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from duly import Duly, DulyError, StoreError, StoreUnavailable
from duly.errors import SchemaMismatch, StoreReadOnly, StoreRefused
from duly.store import migrator
from duly.store.schema import SchemaMigration
from duly.store.store_factory import sqlite_path
from tests.servers.processes import free_port
from tests.store.conformance.stores import opened_tables, package_of

pytestmark = pytest.mark.untouched


def with_task(url: str):
    """Return an application and one of its tasks."""
    app = Duly(url)

    @app.task(name="send")
    def send() -> None: ...

    return app, send


def test_defining_a_task_and_calling_it_directly_needs_no_store():
    app, send = with_task("postgresql://nobody@127.0.0.1:1/none")

    assert send() is None
    assert app.registry.names() == ("send",)


def test_tables_of_a_newer_duly_are_refused_at_first_use(app, store_url):
    assert app.runs.list() == []
    with opened_tables(store_url) as tables:
        tables.execute(
            "INSERT INTO duly_schema (version, oldest_code, name) VALUES (99, 98, 'later')"
        )

    late, send = with_task(store_url)

    with pytest.raises(SchemaMismatch, match=r"schema version 99.*upgrade duly here"):
        send.enqueue()
    with pytest.raises(StoreError):
        late.worker()
    assert app.runs.list() == []


def test_tables_of_an_older_duly_are_refused_until_they_are_migrated(app, store_url, monkeypatch):
    assert app.runs.list() == []
    package = package_of(store_url)
    steps = [*migrator.migrations(package), SchemaMigration(99, "0099_more", "SELECT 1;")]
    monkeypatch.setattr(migrator, "migrations", lambda _package: steps)

    late, send = with_task(store_url)

    with pytest.raises(SchemaMismatch, match="run `duly db migrate` once"):
        send.enqueue()
    migrator.migrate(app.store, package)
    assert send.enqueue().state == "queued"
    late.close()


def test_a_server_that_does_not_answer_is_unavailable():
    _, send = with_task(f"postgresql://nobody:hush@127.0.0.1:{free_port()}/none")

    with pytest.raises(StoreUnavailable) as caught:
        send.enqueue()

    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_store_whose_folder_is_created_later_can_be_used(tmp_path):
    folder = tmp_path / "missing"
    app, send = with_task(f"sqlite:///{folder / 'duly.db'}")

    with pytest.raises(StoreRefused, match="does not exist; create it"):
        send.enqueue()
    folder.mkdir()

    assert send.enqueue().state == "queued"
    app.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://localhost/x", "is not a supported store URL"),
        ("duly.db", "is not a supported store URL"),
        ("", "is not a supported store URL"),
        ("sqlite://duly.db", "is not of the form"),
        ("sqlite:///", "is not of the form"),
        ("sqlite:///duly.db?mode=ro", "is not of the form"),
        ("sqlite:///:memory:", "they need a file"),
    ],
)
def test_an_address_that_names_no_store_is_refused(url, message, monkeypatch):
    monkeypatch.setenv("DULY_URL", url)

    _, send = with_task(url or "://")

    with pytest.raises(StoreRefused, match=message):
        send.enqueue()


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    file = tmp_path / "duly.db"
    file.write_bytes(b"Dear diary, " * 1000)
    _, send = with_task(f"sqlite:///{file}")

    with pytest.raises(StoreRefused, match="damaged or not a SQLite database"):
        send.enqueue()

    assert file.read_bytes() == b"Dear diary, " * 1000


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "duly.db")
    _, send = with_task(f"sqlite:///{tmp_path / 'link.db'}")

    with pytest.raises(StoreRefused, match="symbolic link"):
        send.enqueue()


@pytest.mark.parametrize("what", ["file", "folder", "folder that cannot be entered"])
def test_a_read_only_store_raises_a_typed_error_and_stays_unchanged(what):
    with TemporaryDirectory() as outer:
        Path(outer).chmod(0o755)
        folder = Path(outer) / "data"
        folder.mkdir(mode=0o777)
        file = folder / "duly.db"
        app, send = with_task(f"sqlite:///{file}")
        assert app.runs.list() == []
        app.close()
        # Grant access by group, because duly refuses a file that every user may write.
        for path in folder.iterdir():
            give_to_strangers_group(path)
            path.chmod(0o440 if path == file and what == "file" else 0o660)
        give_to_strangers_group(folder)
        folder.chmod({"file": 0o770, "folder": 0o550}.get(what, 0o600))
        before = file.read_bytes()

        kind, message = as_a_stranger(send.enqueue)

        folder.chmod(0o700)
        assert kind == StoreReadOnly.__name__, message
        assert "permissions" in message
        assert file.read_bytes() == before


def give_to_strangers_group(path: Path) -> None:
    if os.getuid() == 0:
        os.chown(path, -1, 65534)


def as_a_stranger(act) -> tuple[str, str]:
    """Call the function as an unprivileged user. Return the type and message of its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            act()
            answer = ("nothing", "")
        except DulyError as error:
            answer = (type(error).__name__, str(error))
        except BaseException as error:  # noqa: BLE001 - reported to the test
            answer = (f"untyped {type(error).__name__}", str(error))
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    kind, message = json.loads(text)
    return kind, message


@pytest.mark.stores("sqlite")
def test_a_full_disk_raises_store_full_and_leaves_no_partial_write(app, store_url):
    @app.task(name="send")
    def send(text: str) -> None: ...

    kept = send.enqueue("x").id
    with closing(sqlite3.connect(sqlite_path(store_url))) as other:
        (pages,) = other.execute("PRAGMA page_count").fetchone()
    # The store's own connection: `max_page_count` belongs to a connection, not to the file.
    app.store._process.writer.execute(f"PRAGMA max_page_count = {pages + 3}")

    with pytest.raises(StoreError, match="full") as caught:
        app.enqueue_many(send.call("x" * 1000) for _ in range(500))

    assert type(caught.value).__name__ == "StoreFull"
    assert [run.id for run in app.runs.list()] == [kept]
    app.store._process.writer.execute("PRAGMA max_page_count = 1073741823")
    assert send.enqueue("y").state == "queued"
