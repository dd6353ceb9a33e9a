"""How long a supervisor pauses before it starts another process in the place of one that failed."""

from duly.clock import monotonic

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0
_DOUBLINGS = 10


class RestartBackoff:
    """Pauses that double with every start that fails."""

    def __init__(self) -> None:
        self._failed_starts = 0
        self._until = 0.0

    def is_over(self, now: float) -> bool:
        """Return whether processes may be started at this time (monotonic)."""
        return now >= self._until

    def note_failure(self) -> None:
        """Pause: a process could not be started, or ended before it had registered."""
        self._failed_starts += 1
        pause = _FIRST_SECONDS * 2 ** min(self._failed_starts, _DOUBLINGS)
        self._until = monotonic() + min(_LONGEST_SECONDS, pause)

    def note_success(self) -> None:
        """Begin with the shortest pause again: a process has registered."""
        self._failed_starts = 0
