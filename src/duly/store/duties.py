"""Upkeep that one of many workers suffices for."""

from typing import NamedTuple


class Turn(NamedTuple):
    """Part of an op: do it only if no other worker does. Who has no turn is answered None.

    SQLite has one writer, and every worker has its turn there.
    """

    duty: str
    seconds: float = 0.0
    """For how long it need not be done again; 0 only keeps two workers from doing it at once."""
