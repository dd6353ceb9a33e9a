"""The thread that renews leases: it sends heartbeats and publishes each worker's deadline."""

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from duly import faultpoints
from duly.clock import monotonic
from duly.errors import BadOption, StoreError

_RETRY_SECONDS = 0.25


class HeartbeatWriter(Protocol):
    """Writes heartbeats of workers, and returns the workers that are still registered as live."""

    def beat(self, worker_ids: list[str]) -> set[str]: ...


class HeartbeatThread:
    """Sends heartbeats for the workers that `members` names, on its own thread."""

    def __init__(
        self,
        pulse: HeartbeatWriter,
        members: Callable[[], Mapping[str, Callable[[float], None]]],
        disowned: Callable[[str], None],
        *,
        lease: float,
        beat: float,
        margin: float,
    ) -> None:
        """Send heartbeats for `members`: worker ids, each with a callback for its deadline.

        `disowned` is called with each id that the store no longer lists as live.
        """
        # Three times 0.2 is more than 0.6 in binary.
        if beat * 3 > lease * (1 + 1e-9) or margin * 2 > lease:
            message = (
                f"the lease ({lease} s) must be at least three times the heartbeat interval "
                f"({beat} s); otherwise one late heartbeat would lose it"
            )
            raise BadOption(message)
        self._writer = pulse
        self._members = members
        self._disowned = disowned
        self._lease = lease
        self._beat = beat
        self._margin = margin
        self.on_attempt: Callable[[float, float | None], None] = lambda _now, _since: None
        """Called after every try with two monotonic times.

        The first is when this process was last known to be alive. For an acknowledged heartbeat it
        is the time of sending, because other workers count the lease from then on. The second is
        since when all heartbeats were acknowledged.
        """
        self.beats_succeeded_since: float | None = None
        """Since when (monotonic) every heartbeat has been acknowledged. None after a failure."""
        self.trying_since: float | None = None
        """Since when (monotonic) a heartbeat has been in progress. None if none is."""
        self._due = threading.Event()
        self._ended = False
        self._first_pause = 0.0
        self._thread = threading.Thread(target=self._run, name="duly-heartbeat", daemon=True)

    def start(self, *, after: float = 0.0) -> None:
        """Start the thread. The first heartbeat is sent after `after` seconds."""
        self._first_pause = after
        self._thread.start()

    def beat_now(self) -> None:
        """Send a heartbeat now, because there is a new member."""
        self._due.set()

    def stop(self) -> None:
        """End the thread."""
        self._ended = True
        self._due.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        self._due.wait(self._first_pause)
        while not self._ended:
            try:
                pause = self.tick()
            except Exception:  # noqa: BLE001 - without this thread every worker here would die
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
                pause = _RETRY_SECONDS
            self._due.wait(pause)
            self._due.clear()

    def tick(self) -> float:
        """Send one heartbeat for all members. Return the seconds until the next one."""
        self.trying_since = monotonic()
        try:
            return self._try(self.trying_since)
        finally:
            self.trying_since = None

    def _try(self, sent_at: float) -> float:
        members = self._members()
        faultpoints.hit("beat.before_write")
        try:
            acknowledged = self._writer.beat(list(members)) if members else set()
        except (StoreError, OSError):
            # The lease is valid until its deadline. An outage shorter than that costs nothing.
            self.beats_succeeded_since = None
            self.on_attempt(monotonic(), None)
            return _RETRY_SECONDS
        faultpoints.hit("beat.after_write")
        is_late = monotonic() - sent_at > self._lease / 2
        if is_late:
            # Other workers may have seen the heartbeat when it was sent or just now. Another must
            # follow.
            self.beats_succeeded_since = None
            self.on_attempt(monotonic(), None)
        else:
            if self.beats_succeeded_since is None:
                self.beats_succeeded_since = sent_at
            self.on_attempt(sent_at, self.beats_succeeded_since)
        for worker_id, publish in members.items():
            if worker_id in acknowledged:
                publish(sent_at + self._lease - self._margin)
            else:
                self._disowned(worker_id)
        return 0.0 if is_late else self._beat
