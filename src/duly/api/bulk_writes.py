"""Writes operator actions on many runs in batches, and reports progress."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from duly.clock import monotonic
from duly.limits import PAGE
from duly.store.ops.bulk import Answer, RunAction, is_done, refusals
from duly.store.protocol import Store


class BulkResult(NamedTuple):
    """The result of a bulk action. Runs that changed meanwhile are skipped."""

    done: int
    skipped: int
    refused: tuple[str, ...] = ()
    """Why some of the skipped runs were not retried, at most a page of reasons.

    Either another live run has their key, or a person must resolve one of their steps first.
    """


Progress = Callable[[BulkResult], None]


def apply_each(
    store: Store,
    ops: Iterable[RunAction],
    *,
    rate: float | None = None,
    progress: Progress | None = None,
) -> BulkResult:
    """Write the ops, at most `rate` of them per second."""
    total = BulkResult(0, 0)
    started_at = monotonic()
    for batch in _batches(ops, rate):
        answers: list[Answer] = store.apply(batch)
        done = sum(map(is_done, answers))
        refused = [*total.refused, *refusals(batch, answers)]
        skipped = total.skipped + len(answers) - done
        total = BulkResult(total.done + done, skipped, tuple(refused[:PAGE]))
        if progress is not None:
            progress(total)
        if rate is not None:
            due = started_at + (total.done + total.skipped) / rate
            threading.Event().wait(max(0.0, due - monotonic()))
    return total


def _batches(ops: Iterable[RunAction], rate: float | None) -> Iterator[list[RunAction]]:
    size = PAGE if rate is None else max(1, min(PAGE, int(rate / 10)))
    batch: list[RunAction] = []
    for op in ops:
        batch.append(op)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch
