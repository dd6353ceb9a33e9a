"""How each op is carried out, in terms of statements that every database has."""

from duly.store.verbs import (
    bulk,
    carriers,
    guard,
    locks,
    operators,
    recovery,
    schedules,
    steps,
    updates,
    upkeep,
)

__all__ = [
    "bulk",
    "carriers",
    "guard",
    "locks",
    "operators",
    "recovery",
    "schedules",
    "steps",
    "updates",
    "upkeep",
]
