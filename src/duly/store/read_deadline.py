"""Reads that may take so long and no longer: those of a page, which somebody can ask for again.

Reads of the engine, audits and backups have no such bound, and share connections with these. So it
is said by who asks, for a block, and kept by the store, statement by statement.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from duly.clock import monotonic
from duly.errors import ReadTooSlow

_until: ContextVar[float | None] = ContextVar("duly_reads_until", default=None)


@contextmanager
def limit_read_time(seconds: float) -> Iterator[None]:
    """Let all reads of a block together take no longer; the one that would raises ReadTooSlow."""
    outer, until = _until.get(), monotonic() + seconds
    token = _until.set(until if outer is None else min(outer, until))
    try:
        yield
    finally:
        _until.reset(token)


def seconds_left() -> float | None:
    """Return how long the next read may take; None if nobody said."""
    until = _until.get()
    if until is None:
        return None
    left = until - monotonic()
    if left <= 0:
        raise ReadTooSlow
    return left
