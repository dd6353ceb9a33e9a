"""Heartbeats: a counter in each worker's row, on a connection that fails instead of hanging."""

import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from typing import Any

import psycopg

from duly.errors import StoreError
from duly.limits import WATCHERS
from duly.store.heartbeats import HeartbeatReading
from duly.store.postgres.address import Address
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import AS_LOGIN_ROLE, PostgresSession, connect
from duly.store.postgres.failures import READ_ONLY, translated
from duly.store.postgres.timed_statement import execute_within
from duly.store.statements import load

SQL = load("postgres", "recover")

Row = tuple[Any, ...]
Query = Callable[[PostgresSession], list[Row]]

ANSWER_SECONDS = 2
"""Connecting and querying together take less time than the interval between two beats."""


class PostgresHeartbeats:
    """Sends the heartbeats of workers and reads those of others, in the workers' rows."""

    def __init__(self, address: Address, read: Callable[[Query], list[Row]]) -> None:
        self._read_elsewhere = read
        """Reads on a connection that this process has for other purposes."""
        self._sends_beats = False
        self._address = address.with_parameters(connect_timeout=ANSWER_SECONDS)
        # The server times out first, so that no beat is counted long after the client gave up.
        self._settings = {"statement_timeout": f"{750 * ANSWER_SECONDS}ms"}
        self._mutex = threading.Lock()
        self._session: PostgresSession | None = None

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        """Count one beat for each worker. Return the workers that are still live in the store."""
        if not worker_ids:
            return set()
        self._sends_beats = True
        return {row[0] for row in self._ask(SQL["beat"], (texts(worker_ids),))}

    def read(self) -> dict[str, HeartbeatReading]:
        """Read the beats of every live worker. A dead and a frozen process look the same here."""
        rows = self._read(SQL["beats"], ())
        return {
            worker_id: HeartbeatReading(int(beats), float(age), lease=float(lease))
            for worker_id, beats, age, lease in rows
        }

    def is_watcher(self, worker_ids: Collection[str], within: float) -> bool:
        """Return whether one of these is among the first live workers with a recent beat."""
        rows = self._read(SQL["watchers"], (str(within), str(WATCHERS)))
        return len(rows) < WATCHERS or any(row[0] in worker_ids for row in rows)

    def refuse_beats(self, worker_id: str, beats: int) -> bool:  # noqa: ARG002
        """Do nothing: `Recover` checks the counter while it holds the lock on the worker's row."""
        return True

    def forget(self, worker_id: str) -> None:
        """Do nothing: a recovered worker leaves only its row, which is kept as history."""

    def close(self) -> None:
        """Close the connection."""
        with self._mutex:
            self._hang_up()

    def _read(self, sql: str, parameters: Sequence[str]) -> list[Row]:
        """Read on the connection of the beats. A process whose supervisor beats for it has none."""
        if self._sends_beats:
            return self._ask(sql, parameters)
        return self._read_elsewhere(
            lambda session: execute_within(session, sql, parameters, seconds=ANSWER_SECONDS)
        )

    def _ask(self, sql: str, parameters: Sequence[str]) -> list[Row]:
        with self._mutex:
            if self._session is None or not self._session.is_alive():
                self._hang_up()
                self._session = connect(self._address, self._settings)
            try:
                return execute_within(self._session, sql, parameters, seconds=ANSWER_SECONDS)
            except psycopg.Error as error:
                # The cause does not matter, since a failed beat is not retried on this session.
                self._hang_up()
                if error.sqlstate == READ_ONLY:
                    self._address.epoch.advance()
                raise translated(error, self._address) from error
            except StoreError:
                self._hang_up()
                raise

    def _hang_up(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def is_server_busy(address: Address, seconds: float) -> bool:
    """Return whether a statement of this application has run on the server for that long.

    The statement may wait for a lock or for a disk. A server that does not answer is also busy.
    """
    impatient = address.with_parameters(connect_timeout=ANSWER_SECONDS)
    try:
        with closing(connect(impatient, {})) as session:
            for sql in ("BEGIN", AS_LOGIN_ROLE):
                execute_within(session, sql, seconds=ANSWER_SECONDS)
            rows = execute_within(session, SQL["busy"], (str(seconds),), seconds=ANSWER_SECONDS)
    except (StoreError, psycopg.Error, OSError):
        return True
    return rows == [("t",)]


class PostgresLivenessHandle:
    """A handle of a worker process. On PostgreSQL only the heartbeats show that it is alive."""

    def end(self) -> None:
        """Do nothing: `Recover(stopped=True)` records that the worker has stopped."""
