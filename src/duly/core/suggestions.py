"""Finds the known name that a user probably meant."""

from collections.abc import Iterable


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the names whose last part is this name, or else those that differ in a few letters."""
    names = sorted(set(known))
    last_part = {each: each.replace(":", ".").rpartition(".")[2] for each in names}
    same = [each for each in names if last_part[each] == name]
    close = {*_close(name, names), *_close(name, last_part.values())}
    return same or [each for each in names if not close.isdisjoint((each, last_part[each]))]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that differs least, if one is similar enough."""
    return next(iter(_close(name, known)), None)


def _close(name: str, known: Iterable[str]) -> list[str]:
    from difflib import get_close_matches  # noqa: PLC0415 - needed only when something is wrong

    return get_close_matches(name, list(known))
