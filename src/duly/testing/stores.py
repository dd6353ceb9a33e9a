"""Stores for single tests, with a clock that the test moves."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from duly.clock import Clock, SystemClock

if TYPE_CHECKING:
    from duly.store.postgres.fresh_database import ServerClock


class FreshStore(Protocol):
    """A store for one test, and its time."""

    url: str
    clock: Clock | None
    """The clock that the application must use to follow this store's time."""

    def freeze(self) -> None:
        """Stop the store's time. The store must have been opened before."""
        ...

    def advance(self, microseconds: int) -> None:
        """Move time forward."""
        ...

    def remove(self) -> None:
        """Remove everything that the store created."""
        ...


class ManualClock:
    """Starts at the host's time and stands still."""

    def __init__(self) -> None:
        clock = SystemClock()
        self._now, self._uptime = clock.now(), clock.uptime()

    def now(self) -> int:
        """Return the wall time."""
        return self._now

    def uptime(self) -> int:
        """Return the time since the machine was started."""
        return self._uptime

    def advance(self, microseconds: int) -> None:
        """Move time forward."""
        self._now += microseconds
        self._uptime += microseconds


class SqliteTestStore:
    """A file in a directory of the test."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'duly-test.db'}"
        self.clock: Clock | None = (clock := ManualClock())
        self._clock = clock

    def freeze(self) -> None:
        """Do nothing, because this clock has always stood still."""

    def advance(self, microseconds: int) -> None:
        """Move time forward."""
        self._clock.advance(microseconds)

    def remove(self) -> None:
        """Leave the directory to the code that made it."""


class PostgresTestStore:
    """A database for one test on a server, dropped afterwards."""

    clock: Clock | None = None

    def __init__(self, server_url: str) -> None:
        from duly.store.postgres.fresh_database import FreshDatabase  # noqa: PLC0415 - an optional extra

        self._database = FreshDatabase(server_url)
        self.url = self._database.url
        self._time: ServerClock | None = None

    def freeze(self) -> None:
        """Stop the server's time in this database."""
        from duly.store.postgres.fresh_database import ServerClock  # noqa: PLC0415 - as above

        self._time = ServerClock(self.url)

    def advance(self, microseconds: int) -> None:
        """Move time forward."""
        assert self._time is not None, "freeze it first"  # noqa: S101 - the protocol requires it
        self._time.advance(microseconds)

    def remove(self) -> None:
        """Drop the database."""
        self._database.drop()
