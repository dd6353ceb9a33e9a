"""Writes that a database refuses because of what they would write."""

from duly.errors import StoreError


class ValueRefused(StoreError):
    """The database cannot store one of the values; the same write would fail again."""


REFUSALS = (ValueRefused, ValueError, OverflowError)
"""With those of the drivers' own, which cannot encode a value."""
