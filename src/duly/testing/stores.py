"""Stores of their own for tests, with a clock that goes on only when it is told to."""

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from duly.clock import Clock, SystemClock

if TYPE_CHECKING:
    from duly.store.postgres.fresh_database import ServerClock


class FreshStore(Protocol):
    """A store of a test's own, and its time."""

    url: str
    clock: Clock | None
    """What an application must be given to go by this store's time."""

    def freeze(self) -> None:
        """Let its time stand still from now on; the store must have been opened before."""
        ...

    def advance(self, microseconds: int) -> None:
        """Let time pass."""
        ...

    def remove(self) -> None:
        """Leave nothing behind."""
        ...


class ManualClock:
    """Begins at the host's time and stands still."""

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
        """Let time pass."""
        self._now += microseconds
        self._uptime += microseconds


class SqliteTestStore:
    """A file in a folder of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'duly-test.db'}"
        self.clock: Clock | None = (clock := ManualClock())
        self._clock = clock

    def freeze(self) -> None:
        """Do nothing: it stands still from the beginning."""

    def advance(self, microseconds: int) -> None:
        """Let time pass."""
        self._clock.advance(microseconds)

    def remove(self) -> None:
        """Leave the folder to whoever made it."""


class PostgresTestStore:
    """A database of the test's own on a server, gone after it."""

    clock: Clock | None = None

    def __init__(self, server_url: str) -> None:
        from duly.store.postgres.fresh_database import FreshDatabase  # noqa: PLC0415 - an optional extra

        self._database = FreshDatabase(server_url)
        self.url = self._database.url
        self._time: ServerClock | None = None

    def freeze(self) -> None:
        """Let the server's time stand still in this database."""
        from duly.store.postgres.fresh_database import ServerClock  # noqa: PLC0415 - as above

        self._time = ServerClock(self.url)

    def advance(self, microseconds: int) -> None:
        """Let time pass."""
        assert self._time is not None, "freeze it first"  # noqa: S101 - said by the protocol
        self._time.advance(microseconds)

    def remove(self) -> None:
        """Drop the database."""
        self._database.drop()
