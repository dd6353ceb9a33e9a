"""The workload for workers that freeze at the worst moments, if requested.

One is between the end of a task and its record. The worker has checked its deadline and is about to
write. When it continues, its write is late, and only the fence prevents it. Another is inside a
claim. When the worker continues, it holds runs that it may or may not start. A file named after the
supervisor, or after a process without one, requests the freeze.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from duly import faultpoints
from duly.app import Duly
from duly.store.ops.op import A, Op, OpWriter
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.updates import RunUpdate
from duly.store.protocol import Store
from duly.store.task_transaction import TaskTransaction
from duly_prove.observation_log import ObservationLog
from duly_prove.workload import app as workload
from duly_prove.workload import observations

BEFORE_SETTLE, BEFORE_COMMIT, IN_CLAIM = "settle", "commit", "claim"


def freeze_flag(folder: Path, asked: int) -> Path:
    """Return the file that requests a process, or the workers of a supervisor, to freeze."""
    return folder / f"stop-{asked}"


class FreezingDuly(Duly):
    """An application whose store freezes before it settles."""

    def __init__(self, observations: ObservationLog, asked: int) -> None:
        super().__init__()
        self._flag = (
            None if observations.folder is None else freeze_flag(observations.folder, asked)
        )
        faultpoints.arm("claim.before_commit", self._stop_in_claim)

    @property
    def store(self) -> Store:
        """The open store, with a possible freeze before every settle."""
        return cast("Store", _FreezingStore(super().store, self._flag))

    def _stop_in_claim(self) -> None:
        _freeze_if_requested(self._flag, IN_CLAIM)


class _FreezingStore(OpWriter):
    def __init__(self, store: Store, flag: Path | None) -> None:
        self._store = store
        self._flag = flag

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._store, name)

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        settles = [place for place, op in enumerate(ops) if isinstance(op, Settle)]
        is_late = bool(settles) and _freeze_if_requested(self._flag, BEFORE_SETTLE)
        answers = self._store.apply(ops)
        if is_late:
            observations.late_write(sum(answers[place] is Settled.CLAIM_LOST for place in settles))
        return answers

    def task_transaction(self, seconds: float | None = None) -> "_FreezingTaskTransaction":
        return _FreezingTaskTransaction(self._store.task_transaction(seconds), self._flag)


class _FreezingTaskTransaction:
    def __init__(self, section: TaskTransaction, flag: Path | None) -> None:
        self._section = section
        self._flag = flag

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute
        return getattr(self._section, name)

    def settle_and_commit(self, op: Settle, words: Sequence[RunUpdate] = ()) -> Settled:
        _freeze_if_requested(self._flag, BEFORE_COMMIT)
        return self._section.settle_and_commit(op, words)


def _freeze_if_requested(flag: Path | None, where: str) -> bool:
    """Freeze if a freeze at this place is requested. Return whether it was."""
    is_asked = flag is not None and flag.exists() and flag.read_text() == where
    if is_asked:
        faultpoints.stop_here()
    return is_asked


app = FreezingDuly(observations, os.getppid())
app.registry, app.bus = workload.registry, workload.bus
