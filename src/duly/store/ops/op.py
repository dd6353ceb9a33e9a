"""Ops, and the facts about each kind of op that every database needs."""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeVar

from duly.core.batches import bytes_of

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
Kind = TypeVar("Kind", bound=type)


class Op(Protocol[A_co]):
    """A write that a store carries out as a whole or not at all. It is a named tuple."""

    def answer(self) -> A_co:
        """Tell type checkers what the store returns for this op. It is never called."""
        ...


AnyOp = Op[object]


class Phase(IntEnum):
    """The place of a kind of op among the ops of one call or one commit.

    Ops of one phase that are about the same run are carried out in the order of the call.
    """

    UPDATE = 0
    """Reports of running attempts come first, since their ends may be in the same commit."""
    SETTLE = 1
    ENQUEUE = 2
    OPERATE = 3
    CLAIM = 4
    """Last, so that claims see everything that the other ops made ready."""


Wakes = Callable[[Sequence[Any], Sequence[Any]], bool]
"""Returns, from ops of one kind and their answers, whether idle workers need a hint after the
commit."""


def never(_ops: object, _answers: object) -> bool:
    """Return False: such ops make no run ready."""
    return False


def always(_ops: object, _answers: object) -> bool:
    """Return True: such ops may make runs ready."""
    return True


def if_found(_ops: object, answers: Iterable[object]) -> bool:
    """Return whether an op did something."""
    return any(answers)


def size_of_texts(op: Iterable[object]) -> int:
    """Return about how many bytes of payload an op writes: those of its texts."""
    return sum(bytes_of(field) for field in op if type(field) is str)


class OpWriter:
    """A place where ops are written."""

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        raise NotImplementedError

    def do(self, op: Op[A]) -> A:
        """Carry out one op, and return its answer."""
        return self.apply([op])[0]


class Facts(NamedTuple):
    """Everything that a store must know about a kind of op, except how to carry it out."""

    phase: Phase
    fault: str
    """The first part of the names of its fault points."""
    wakes: Wakes = never
    is_repeatable: bool = False
    """True if a body may write the op again without knowing what became of it. The second write
    changes nothing and has the same answer."""
    is_alone: bool = False
    """True if PostgreSQL gives each such op a transaction of its own. It may lock many runs, or
    hold a duty that no other worker may do meanwhile."""
    size: Callable[[Any], int] = size_of_texts


FACTS: dict[type, Facts] = {}
"""The facts about every kind of op whose module is imported."""


def op(facts: Facts) -> Callable[[Kind], Kind]:
    """Make a named tuple a kind of op."""

    def decorate(kind: Kind) -> Kind:
        FACTS[kind] = facts
        return kind

    return decorate


def size_of(op: AnyOp) -> int:
    """Return about how many bytes of payload an op writes, so that a commit can be bounded."""
    return FACTS[type(op)].size(op)


def is_alone(op: AnyOp) -> bool:
    """Return whether PostgreSQL gives an op a transaction of its own."""
    return FACTS[type(op)].is_alone


def is_repeatable(ops: Iterable[AnyOp]) -> bool:
    """Return whether the ops can be written again without knowing what became of them."""
    return all(FACTS[type(each)].is_repeatable for each in ops)


def makes_ready(ops: Sequence[AnyOp], answers: Sequence[object]) -> bool:
    """Return whether ops that were committed made runs ready, so that workers need a hint."""
    for kind in set(map(type, ops)):
        wakes = FACTS[kind].wakes
        if wakes is not never:
            own = [place for place, op in enumerate(ops) if type(op) is kind]
            if wakes([ops[place] for place in own], [answers[place] for place in own]):
                return True
    return False


class Group(NamedTuple):
    """Ops of one kind that are carried out one after the other."""

    kind: type
    places: Sequence[int]
    ops: Sequence[AnyOp]


def in_order(ops: Sequence[AnyOp]) -> list[Group]:
    """Return the ops in the order of their phases, with their places."""
    kinds = list(map(type, ops))
    if kinds.count(kinds[0]) == len(kinds):
        return [Group(kinds[0], range(len(ops)), ops)]
    phases = [FACTS[kind].phase for kind in kinds]
    places: Sequence[int] = range(len(ops))
    if phases != sorted(phases):
        places = sorted(places, key=phases.__getitem__)
    return [
        Group(kind, own, [ops[place] for place in own])
        for kind, group in groupby(places, key=kinds.__getitem__)
        for own in [list(group)]
    ]


def spread(found: Sequence[Any], places: Sequence[int], answers: list[Any]) -> None:
    """Put answers into their places."""
    for place, answer in zip(places, found, strict=True):
        answers[place] = answer
