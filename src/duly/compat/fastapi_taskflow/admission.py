"""Decides whether a claimed run may start. A run without persistence ends with its process.

Such a run is tagged with the exact process that enqueued it. The worker that claims it checks
whether that process is still alive, and whether an earlier attempt was interrupted. If so, the run
ends as interrupted. It stays visible and can be retried, but never runs again by itself. A one-time
run that a newer one replaces ends as cancelled if the process that replaced it died midway.
"""

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from duly.clock import boot_id, new_id
from duly.core.outcome import Cancelled, Outcome, Refused
from duly.core.record import Claim
from duly.core.states import RESERVED_TAGS, stored_tags
from duly.store.protocol import Store
from duly.store.reads import RunFilter

ACCEPTER_TAG = f"{RESERVED_TAGS}accepter"
RUN_KEY_TAG = f"{RESERVED_TAGS}run_key"
NOT_PERSISTED = "not_persisted"

_INTERRUPTED_OUTCOMES = frozenset({"lost", "stopped"})
_STATE, _STARTED = 0, 19
"""Indexes of the fields after the name in /proc/PID/stat."""


class AcceptingProcess(NamedTuple):
    """A process and its worker."""

    place: str
    """The boot and the pid namespace that make the pid unique. Empty if unknown."""
    pid: int
    started: str
    """The start time from the kernel, or else a unique id."""
    worker_id: str

    @classmethod
    def here(cls, worker_id: str) -> "AcceptingProcess":
        """Return this process."""
        return cls(*_this_process(os.getpid()), worker_id)

    @classmethod
    def read(cls, text: str) -> "AcceptingProcess":
        """Return the process that a tag names."""
        place, pid, started, worker_id = text.split(" ")
        return cls(place, int(pid), started, worker_id)

    def __str__(self) -> str:
        return " ".join(map(str, self))

    def is_gone(self, store: Store) -> bool:
        """Return whether the process is gone.

        This is certain on the same machine. Elsewhere a process is gone once its lease has expired.
        """
        here = _this_process(os.getpid())
        if self[:3] == here:
            return False
        if self.place and self.place == here[0]:
            return _started(self.pid) != self.started
        seen = store.heartbeats().read().get(self.worker_id)
        return seen is None or seen.beats is None


def admission(store: Callable[[], Store], *, persisted: bool) -> Callable[[Claim], Outcome | None]:
    """Return the function that decides whether a run of a task may start."""

    def admit(claim: Claim) -> Outcome | None:
        tags = stored_tags(claim.tags) if claim.tags and RESERVED_TAGS in claim.tags else {}
        if not persisted:
            refused = _refused(claim, tags.get(ACCEPTER_TAG), store())
            if refused is not None:
                return refused
        run_key = tags.get(RUN_KEY_TAG)
        if run_key is not None and claim.generation == 1:
            return _superseded(claim, run_key, store())
        return None

    return admit


def _refused(claim: Claim, accepter: str | None, store: Store) -> Outcome | None:
    # Most claims are the first, or follow a failed attempt, and need no query.
    has_more_claims = claim.claim_number - 1 > claim.retries_used
    if has_more_claims and _was_interrupted(claim, store):
        return Refused(
            NOT_PERSISTED,
            "the task was interrupted while it ran, and it has no persist=True: find out how far "
            "it ran, then retry it",
        )
    # After an operator has retried the run, it belongs to no process.
    if (
        accepter is not None
        and claim.generation == 1
        and AcceptingProcess.read(accepter).is_gone(store)
    ):
        return Refused(
            NOT_PERSISTED,
            "the task had not started when the process that accepted it ended, and it has no "
            "persist=True: retry it, or define its task with persist=True",
        )
    return None


def _was_interrupted(claim: Claim, store: Store) -> bool:
    return any(
        attempt.outcome in _INTERRUPTED_OUTCOMES and attempt.generation == claim.generation
        for attempt in store.list_attempts(claim.run_id)
    )


def _superseded(claim: Claim, run_key: str, store: Store) -> Outcome | None:
    newest = store.list_runs(RunFilter(tag=(RUN_KEY_TAG, run_key), limit=1))
    if not newest or newest[0].id == claim.run_id or store.list_attempts(claim.run_id):
        return None  # A run that has started before continues, whatever was scheduled since.
    return Cancelled("superseded", f"run {newest[0].id} was scheduled in its place")


@lru_cache(maxsize=1)
def _this_process(pid: int) -> tuple[str, int, str]:
    """Return the place, pid and start time of this process. They change after a fork."""
    # If the kernel gives no start time, any id that only this process knows will do.
    return _place(), pid, _started(pid) or new_id()


def _place() -> str:
    boot = boot_id()
    try:
        namespace = Path("/proc/self/ns/pid").readlink()
    except OSError:
        return ""
    return f"{boot.hex()}/{namespace}" if any(boot) else ""


def _started(pid: int) -> str:
    """Return the start time of a process as the kernel reports it. Empty if the process is gone."""
    try:
        # The name is in parentheses and may contain any character.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[_STATE] in {"Z", "X"} else fields[_STARTED]
