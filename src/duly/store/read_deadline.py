"""A time limit for reads of a web page, which the user can request again.

Reads of the engine, audits and backups have no limit, and share connections with these reads. So
the caller sets the limit for a block, and the store enforces it for each statement.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from duly.clock import monotonic
from duly.errors import ReadTooSlow

_until: ContextVar[float | None] = ContextVar("duly_reads_until", default=None)


@contextmanager
def limit_read_time(seconds: float) -> Iterator[None]:
    """Limit the total time of all reads in a block. The read that exceeds it raises ReadTooSlow."""
    outer, until = _until.get(), monotonic() + seconds
    token = _until.set(until if outer is None else min(outer, until))
    try:
        yield
    finally:
        _until.reset(token)


def seconds_left() -> float | None:
    """Return how long the next read may take; None if there is no limit."""
    until = _until.get()
    if until is None:
        return None
    left = until - monotonic()
    if left <= 0:
        raise ReadTooSlow
    return left
