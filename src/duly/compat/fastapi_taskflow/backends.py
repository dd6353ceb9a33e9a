"""Storage backends: these classes only hold an address for duly."""

from os import PathLike, fspath
from typing import Any, Never

from duly.core.addresses import without_driver
from duly.errors import BadOption

_POSTGRES = ("postgresql", "postgres")


class SnapshotBackend:
    """The type of `TaskManager(snapshot_backend=…)`. Custom backends are not possible."""

    url: str

    def __init__(self) -> None:
        raise BadOption(
            f"{type(self).__name__} cannot store tasks: duly stores tasks in SQLite or PostgreSQL, "
            "use SqliteBackend(path) or PostgresBackend(url)"
        )


class SqliteBackend(SnapshotBackend):
    """An SQLite file."""

    def __init__(self, db_path: str | PathLike[str] = "tasks.db") -> None:
        if not isinstance(db_path, str | PathLike) or not fspath(db_path):
            kind = type(db_path).__name__
            raise BadOption(f"the path of a SQLite file must be a string or a Path, not {kind}")
        if "://" in fspath(db_path):
            # The value is not shown, since it may contain a password.
            raise BadOption("SqliteBackend takes the path of a file; use PostgresBackend(url)")
        self.url = f"sqlite:///{fspath(db_path)}"


class PostgresBackend(SnapshotBackend):
    """A PostgreSQL database by its URL. duly opens its own connections."""

    def __init__(self, url: str) -> None:
        self.url = without_driver(url) if isinstance(url, str) else ""
        if self.url.partition("://")[0] not in _POSTGRES:
            raise BadOption("PostgresBackend needs a URL: postgresql://user:password@host/database")


class RedisBackend(SnapshotBackend):
    """Refused: writes that Redis acknowledges may be lost in a crash."""

    def __init__(self, *_args: Any, **_options: Any) -> None:  # noqa: ANN401 - any arguments
        _refuse("Redis")


class MySQLBackend(SnapshotBackend):
    """Refused: duly does not support MySQL."""

    def __init__(self, *_args: Any, **_options: Any) -> None:  # noqa: ANN401 - any arguments
        _refuse("MySQL")


def _refuse(what: str) -> Never:
    raise BadOption(
        f"tasks cannot be stored in {what}: use SqliteBackend(path) on one machine, "
        "PostgresBackend(url) on several"
    )


def address(snapshot_db: str | PathLike[str] | None, backend: SnapshotBackend | None) -> str | None:
    """Return the store's URL. None selects DULY_URL, or else a file in this folder."""
    if backend is not None:
        if not isinstance(backend, SnapshotBackend):
            raise BadOption(
                f"snapshot_backend must be a SqliteBackend or a PostgresBackend, not {backend!r}"
            )
        return backend.url
    return None if snapshot_db is None else SqliteBackend(snapshot_db).url
