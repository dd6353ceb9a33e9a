"""Upkeep that one worker does for all."""

from typing import NamedTuple


class DutyTurn(NamedTuple):
    """Makes an op conditional: if another worker does the duty, the answer is None.

    Only PostgreSQL looks at it. SQLite has one writer, and carries out every op.
    """

    duty: str
    seconds: float = 0.0
    """The interval of the duty. With 0, it is only never done by two workers at the same time."""
