"""How each op is carried out, in terms of statements that every database has."""

from duly.store.verbs import guard, locks, recovery, schedules, upkeep

__all__ = ["guard", "locks", "recovery", "schedules", "upkeep"]
