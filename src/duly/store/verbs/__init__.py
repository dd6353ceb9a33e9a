"""How each op is carried out, in terms of statements that every database has."""

from duly.store.verbs import guard, locks, schedules

__all__ = ["guard", "locks", "schedules"]
