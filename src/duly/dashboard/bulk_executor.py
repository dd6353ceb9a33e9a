"""Acts on many runs: done in the background, and shown by every server process.

The database keeps an act and its progress. The process that was asked works on it in a thread. If
that process dies, another one that serves pages continues where the act was.
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
"""Finds the runs that an act has to look at next."""


class BulkActionExecutor:
    """The acts that this process works on."""

    def __init__(self, desk: ApplicationView, next_page: NextPage) -> None:
        self._view = desk
        self._next_page = next_page
        self._lock = threading.Lock()
        self._next_check_at = 0.0
        self._threads: WeakSet[threading.Thread] = WeakSet()

    def start(self, asked: BulkActionRequest) -> str:
        """Begin an act and return its id; the same that is under way is not begun twice."""
        owner = new_id()
        act_id = self._view.operator.bulk.start(asked, owner=owner)
        self._work_on(act_id, owner)
        return act_id

    def take_over_silent(self) -> None:
        """Take over acts whose processes have died; called with every page, it looks now and then.

        Nothing depends on it that it is asked often: a page that is open asks every second.
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
        """Wait until this process works on no act."""
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join()

    def _execute(self, act_id: str, owner: str) -> None:
        """Do page after page, for as long as the act is ours.

        While the database is away it is tried again; then the act is left to whoever looks next.
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
        """Do one page; return whether there is more for us to do."""
        act = self._view.store.get_bulk(act_id)
        if act is None or act.owner != owner or act.ended_at is not None:
            return False
        bulk = self._view.operator.bulk
        try:
            with limit_read_time(PAGE_SECONDS):
                page = self._next_page(act)
            # A page that was not ours to do is looked at again: its answer may have been lost.
            bulk.advance(act, page)
        except ReadTooSlow as error:
            # It is no outage: the next try would take as long.
            bulk.fail(act, str(error))
        except OUTAGES:
            raise
        except DulyError as error:
            bulk.fail(act, str(error))
        except Exception as error:
            # People are told at once, and the log of the process has the rest.
            bulk.fail(act, f"{type(error).__name__}: {error}")
            raise
        return True


def refusals_of(act: BulkAction) -> list[str]:
    """Return why some runs were not retried."""
    found: list[str] = json.loads(act.refused)
    return found
