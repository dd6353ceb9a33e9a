"""Functions for the tests that only PostgreSQL has."""

import threading
from collections.abc import Callable
from typing import Any

import psycopg

from duly.limits import TRANSACTION_BYTES
from duly.store.postgres.claim import SQL as CLAIM
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import LANE, TASK, TIMEOUT, WORKER

PLACE = {
    "worker_id": WORKER,
    "after_queue": "",
    "queues": None,
    "lanes": f"{{{LANE}}}",
    "limits": "{100}",
    "tasks": f"{{{TASK}}}",
    "excluded": "{}",
    "last": 0,
    "bytes": TRANSACTION_BYTES,
}
"""The parameters of a claim."""
_BUILDER = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND query LIKE '%INDEX CONCURRENTLY%'
   AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()
"""


class InBackground:
    """A call in a thread, whose end a test can wait for."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._action = action
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def answer(self) -> Any:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._answer

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _act(self) -> None:
        try:
            self._answer = self._action()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the test
            self._error = error


def wait_for_a_lock(url: str, *, what: str) -> None:
    """Return when some session of this database waits for a lock of another session."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(
            lambda: connection.execute(waiting).fetchone() != (0,), seconds=TIMEOUT, what=what
        )


def claim_without_commit(connection: psycopg.Connection[Any]) -> list[str]:
    """Run the statements of a claim, without the commit."""
    place = PLACE | {"limits": "{10}"}
    return [row[0] for row in connection.execute(CLAIM["take"], place).fetchall()]


def wait_for_builder(watcher: psycopg.Connection[Any]) -> int:
    """Return the process id of the session that builds an index, once it waits for a writer."""
    wait_until(
        lambda: watcher.execute(_BUILDER).fetchone() is not None,
        seconds=TIMEOUT,
        what="a session builds an index and waits for a transaction",
    )
    ((pid,),) = watcher.execute(_BUILDER).fetchall()
    return int(pid)
