"""Runs bulk actions in the background. Every server process can show their progress.

The database keeps a bulk action and its progress. The process that received the request works on it
in a thread. If that process dies, another process that serves pages continues the action.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from duly.api.bulk_actions import BulkActionRequest, BulkPage
from duly.clock import MICROSECONDS, monotonic, new_id
from duly.core.record import BulkAction
from duly.dashboard.application_view import ApplicationView
from duly.errors import OUTAGES, DulyError, ReadTooSlow, StoreError
from duly.limits import (
    BULK_LEASE_SECONDS,
    BULK_LOOK_SECONDS,
    BULK_PAUSE_SECONDS,
    BULK_TRIES,
    PAGE_SECONDS,
)
from duly.store.read_deadline import limit_read_time

NextPage = Callable[[BulkAction], BulkPage]
"""Returns the next runs of a bulk action."""


class BulkActionExecutor:
    """The bulk actions that this process works on."""

    def __init__(self, view: ApplicationView, next_page: NextPage) -> None:
        self._view = view
        self._next_page = next_page
        self._lock = threading.Lock()
        self._next_check_at = 0.0
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def start(self, asked: BulkActionRequest) -> str:
        """Start a bulk action and return its id. If the same action is running, return that id."""
        owner = new_id()
        act_id = self._view.operator.bulk.start(asked, owner=owner)
        self._work_on(act_id, owner)
        return act_id

    def take_over_silent(self) -> None:
        """Take over bulk actions whose processes have died.

        Every page calls this method, but it checks only now and then. An open page calls it every
        second.
        """
        with self._lock:
            if not self._view.writes or monotonic() < self._next_check_at:
                return
            self._next_check_at = monotonic() + BULK_LOOK_SECONDS
        with suppress(StoreError), limit_read_time(PAGE_SECONDS):
            if not self._view.store.has_silent_bulk(round(BULK_LEASE_SECONDS * MICROSECONDS)):
                return
            owner = new_id()
            for act_id in self._view.operator.bulk.take_over(owner, lease=BULK_LEASE_SECONDS):
                self._work_on(act_id, owner)

    def _work_on(self, act_id: str, owner: str) -> None:
        work = threading.Thread(
            target=self._execute, args=(act_id, owner), name="duly-bulk", daemon=True
        )
        with self._lock:
            work.start()
            self._threads.add(work)

    def wait(self) -> None:
        """Wait until this process works on no bulk action."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _execute(self, act_id: str, owner: str) -> None:
        """Process page after page while this process owns the action.

        If the database cannot be reached, this is retried for a while. Then another process takes
        over.
        """
        failures = 0
        while failures < BULK_TRIES:
            try:
                if not self._advance(act_id, owner):
                    return
                failures = 0
            except OUTAGES:
                failures += 1
                threading.Event().wait(BULK_PAUSE_SECONDS)

    def _advance(self, act_id: str, owner: str) -> bool:
        """Process one page. Return whether this process must continue."""
        act = self._view.store.get_bulk(act_id)
        if act is None or act.owner != owner or act.ended_at is not None:
            return False
        bulk = self._view.operator.bulk
        try:
            with limit_read_time(PAGE_SECONDS):
                page = self._next_page(act)
            # Continue even if `advance` did nothing: the answer to an earlier call may be lost.
            bulk.advance(act, page)
        except ReadTooSlow as error:
            # This is not an outage: another try would take as long.
            bulk.fail(act, str(error))
        except OUTAGES:
            raise
        except DulyError as error:
            bulk.fail(act, str(error))
        except Exception as error:
            # The page shows the error at once, and the log of the process has the details.
            bulk.fail(act, f"{type(error).__name__}: {error}")
            raise
        return True


def refusals_of(act: BulkAction) -> list[str]:
    """Return the reasons that some runs were not retried."""
    found: list[str] = json.loads(act.refused)
    return found
