"""A store that commits each op of a call separately, and may fail between two of them.

`Store.apply` promises the order of ops and not that they commit together. Each database commits
some of them together, so a test on it would not notice a caller that relies on that.
"""

import random
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from duly import Duly, StoreUnavailable
from duly.errors import OUTAGES
from duly.store.ops.op import AnyOp, in_order, is_repeatable
from duly.store.ops.recovery import HandBackUnknown
from duly.store.ops.runs import ClaimRuns
from duly.store.ops.steps import SendEvent
from duly.store.outage_wait import as_repeatable, retry_after_error
from duly.store.postgres.write_routing import (
    RENEWALS,
    lock_order,
    parts_of,
    transactions_of,
)
from duly.store.protocol import Store

Answers = list[Any]
Done = Callable[[Answers | BaseException], None]


class Failure(NamedTuple):
    """A call that failed between two of its ops."""

    written: tuple[AnyOp, ...]
    """The ops that were committed, in the order of their commits."""
    left: tuple[AnyOp, ...]
    """The ops that were not carried out."""


class SeparateCommits:
    """A real store, except that each op of a call is a transaction of its own.

    Of the calls with several ops, a `rate` fails: the first ops are committed, and the others are
    not carried out. `seed` decides which calls fail, and after how many ops. There are at most
    `most` failures.
    """

    def __init__(
        self, store: Store, *, seed: int = 0, rate: float = 0.0, most: int | None = None
    ) -> None:
        self._store = store
        self._random = random.Random(seed)  # noqa: S311 - a test must be able to repeat it
        self._rate = rate
        self._most = most
        self._mutex = threading.Lock()
        self.failures: list[Failure] = []
        self.separated = 0
        """The number of calls that had several ops."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def apply(self, ops: Sequence[AnyOp]) -> Answers:
        """Commit the ops one after the other; return their answers in the order of the ops."""
        try:
            return self._apply(ops)
        except OUTAGES as error:
            # Task code waits for the store inside `apply`, as it does with a real store.
            if not is_repeatable(ops):
                raise
            return retry_after_error(partial(self._apply, as_repeatable(ops)), error)

    def submit(self, ops: Sequence[AnyOp], done: Done) -> None:
        """Commit the ops one after the other from the store's threads, then call `done`."""
        order = order_of(self._store, ops)
        self._submit_next(ops, order, self._cut(ops, order), [None] * len(ops), done)

    def _apply(self, ops: Sequence[AnyOp]) -> Answers:
        order = order_of(self._store, ops)
        written = self._cut(ops, order)
        answers: Answers = [None] * len(ops)
        for place in order[:written]:
            (answers[place],) = self._store.apply([ops[place]])
        if written < len(order):
            raise StoreUnavailable(_MESSAGE)
        return answers

    def _submit_next(
        self, ops: Sequence[AnyOp], order: Sequence[int], count: int, answers: Answers, done: Done
    ) -> None:
        if not order:
            done(answers)
            return
        if not count:
            done(StoreUnavailable(_MESSAGE))
            return
        place, *rest = order

        def written(outcome: Answers | BaseException) -> None:
            if isinstance(outcome, BaseException):
                done(outcome)
                return
            (answers[place],) = outcome
            self._submit_next(ops, rest, count - 1, answers, done)

        self._store.submit([ops[place]], written)

    def _cut(self, ops: Sequence[AnyOp], order: Sequence[int]) -> int:
        """Return the number of ops to carry out, and record a failure if some are left."""
        if len(order) < 2:
            return len(order)
        with self._mutex:
            self.separated += 1
            is_spent = self._most is not None and len(self.failures) >= self._most
            if is_spent or self._random.random() >= self._rate:
                return len(order)
            count = self._random.randrange(1, len(order))
            found = [ops[place] for place in order]
            self.failures.append(Failure(tuple(found[:count]), tuple(found[count:])))
            return count


class SeparateCommitsApp(Duly):
    """An application whose store commits each op of a call separately."""

    def __init__(
        self, url: str, *, seed: int = 0, rate: float = 0.0, most: int | None = None
    ) -> None:
        self._failing = {"seed": seed, "rate": rate, "most": most}
        super().__init__(url)

    @property
    def separate_commits(self) -> SeparateCommits:
        """The open store."""
        return cast("SeparateCommits", self.store)

    def _open_store(self) -> Store:
        return cast("Store", SeparateCommits(super()._open_store(), **cast("Any", self._failing)))


_MESSAGE = "this test's store failed between two ops of a call"


def order_of(store: Store, ops: Sequence[AnyOp]) -> list[int]:
    """Return the indexes of the ops in the order in which a store carries them out."""
    if not ops:
        return []
    return _sqlite_order(ops) if store.has_one_writer else _postgres_order(ops)


def _sqlite_order(ops: Sequence[AnyOp]) -> list[int]:
    return [place for group in in_order(ops) for place in group.places]


def _postgres_order(ops: Sequence[AnyOp]) -> list[int]:
    order: list[int] = []
    for part in parts_of(ops):
        if part.path in {"operate", "serve"}:
            transactions, key = transactions_of(part.ops), lock_order
        else:
            transactions, key = [list(range(len(part.ops)))], _rank
        for own in transactions:
            order += [part.places[place] for place in _sorted(own, part.ops, key)]
    return order


def _sorted(places: Sequence[int], ops: Sequence[AnyOp], key: Callable[[AnyOp], Any]) -> list[int]:
    return sorted(places, key=lambda place: key(ops[place]))


def _rank(op: AnyOp) -> tuple[int, str]:
    """Return the rank of an op among those of its connection."""
    kind = type(op)
    if kind in RENEWALS or kind is HandBackUnknown:
        return -1, ""
    if isinstance(op, SendEvent):
        return 1, op.name
    return int(kind is ClaimRuns), ""
