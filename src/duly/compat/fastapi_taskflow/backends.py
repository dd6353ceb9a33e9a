"""Where tasks are kept: these classes carry an address, and duly does the rest."""

from os import PathLike, fspath
from typing import Any, Never

from duly.errors import BadOption

_POSTGRES = ("postgresql", "postgres")


class SnapshotBackend:
    """What `TaskManager(snapshot_backend=…)` takes; backends of one's own cannot be."""

    url: str

    def __init__(self) -> None:
        raise BadOption(
            f"{type(self).__name__} cannot store tasks: duly stores tasks in SQLite or PostgreSQL, "
            "use SqliteBackend(path) or PostgresBackend(url)"
        )


class SqliteBackend(SnapshotBackend):
    """A SQLite file."""

    def __init__(self, db_path: str | PathLike[str] = "tasks.db") -> None:
        if not isinstance(db_path, str | PathLike) or not fspath(db_path):
            kind = type(db_path).__name__
            raise BadOption(f"the path of a SQLite file must be a string or a Path, not {kind}")
        if "://" in fspath(db_path):
            # It is not shown: there may be a password in it.
            raise BadOption("SqliteBackend takes the path of a file; use PostgresBackend(url)")
        self.url = f"sqlite:///{fspath(db_path)}"


class PostgresBackend(SnapshotBackend):
    """A PostgreSQL database, by its URL; duly opens connections of its own."""

    def __init__(self, url: str) -> None:
        if not isinstance(url, str) or url.partition("://")[0] not in _POSTGRES:
            raise BadOption("PostgresBackend needs a URL: postgresql://user:password@host/database")
        self.url = url


class RedisBackend(SnapshotBackend):
    """Refused: what Redis acknowledges may be gone after a crash."""

    def __init__(self, *_args: Any, **_options: Any) -> None:  # noqa: ANN401 - whatever was given
        _refuse("Redis")


class MySQLBackend(SnapshotBackend):
    """Refused: duly does not speak to MySQL."""

    def __init__(self, *_args: Any, **_options: Any) -> None:  # noqa: ANN401 - whatever was given
        _refuse("MySQL")


def _refuse(what: str) -> Never:
    raise BadOption(
        f"tasks cannot be stored in {what}: use SqliteBackend(path) on one machine, "
        "PostgresBackend(url) on several"
    )


def address(snapshot_db: str | PathLike[str] | None, backend: SnapshotBackend | None) -> str | None:
    """Return the store's URL; None leaves it to DULY_URL, else to a file in this folder."""
    if backend is not None:
        if not isinstance(backend, SnapshotBackend):
            raise BadOption(
                f"snapshot_backend must be a SqliteBackend or a PostgresBackend, not {backend!r}"
            )
        return backend.url
    return None if snapshot_db is None else SqliteBackend(snapshot_db).url
