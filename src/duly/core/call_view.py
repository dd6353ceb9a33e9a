"""The arguments and results of stored calls as people may see them, without secrets."""

from typing import Protocol

from duly.core.codec import Codec
from duly.core.record import RunRecord, StepRecord
from duly.core.redaction import Redaction
from duly.core.secret_names import REDACTED

NOTHING = "null"
"""The stored form of a result that a task did not return."""
_NAMES_ONLY = Redaction()
"""Redacts values with the names of secrets. Without the task, nothing more is known."""


class StoredCall(Protocol):
    """A record with a task and its arguments: a run, a schedule or a dead letter."""

    @property
    def task(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class RegisteredTask(Protocol):
    """A task whose code this process has."""

    @property
    def codec(self) -> Codec: ...


class RegisteredTasks(Protocol):
    """The tasks whose code this process has, by their names."""

    def find(self, name: str) -> RegisteredTask | None: ...


class CallView:
    """Returns the arguments and results of calls without secrets.

    Only the code of a task declares which arguments are secret (`redact=`). Calls of a task that is
    not registered here are therefore hidden, unless `shows_unregistered` is set. Nothing is shown
    with `hides_all`.
    """

    def __init__(
        self,
        tasks: RegisteredTasks | None = None,
        *,
        hides_all: bool = False,
        shows_unregistered: bool = False,
    ) -> None:
        self._tasks = tasks
        self.hides_all = hides_all
        self._shows_unregistered = shows_unregistered

    def is_registered(self, call: StoredCall) -> bool:
        """Return whether this process has the code of the task."""
        return self._find(call) is not None

    def arguments(self, call: StoredCall) -> str | None:
        """Return the stored arguments without secrets, or None if they are hidden.

        They are hidden too if they do not fit the task: it is unknown which of them are secret.
        """
        if self.hides_all:
            return None
        task = self._find(call)
        if task is None:
            return _NAMES_ONLY.text(call.arguments) if self._shows_unregistered else None
        shown = task.codec.redacted(call.arguments)
        return None if shown == REDACTED else shown

    def has_secrets(self, call: StoredCall) -> bool:
        """Return whether some of the arguments are redacted or hidden."""
        return self.arguments(call) != call.arguments

    def result(self, run: RunRecord) -> str | None:
        """Return the stored result without secrets, or None if it is hidden."""
        return self._result(run, run.result)

    def step_result(self, run: RunRecord, step: StepRecord) -> str | None:
        """Return the stored result of a step of the run, or None if it is hidden."""
        return self._result(run, step.result)

    def _result(self, run: RunRecord, stored: str | None) -> str | None:
        if self.hides_all:
            return None
        if stored is None:
            return NOTHING
        task = self._find(run)
        if task is None:
            return _NAMES_ONLY.text(stored) if self._shows_unregistered else None
        return task.codec.redacted_result(stored, run.arguments)

    def _find(self, call: StoredCall) -> RegisteredTask | None:
        return None if self._tasks is None else self._tasks.find(call.task)
