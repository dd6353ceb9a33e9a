"""Which known name somebody may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return those whose last part is the name, or else those that differ in a few letters."""
    names = sorted(set(known))
    last_part = {each: each.replace(":", ".").rpartition(".")[2] for each in names}
    same = [each for each in names if last_part[each] == name]
    close = {*get_close_matches(name, names), *get_close_matches(name, last_part.values())}
    return same or [each for each in names if not close.isdisjoint((each, last_part[each]))]
