"""How each op is carried out, in terms of statements that every database has."""

from duly.store.verbs import carriers, guard, locks, recovery, schedules, steps

__all__ = ["carriers", "guard", "locks", "recovery", "schedules", "steps"]
