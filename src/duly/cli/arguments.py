"""The arguments of calls: parsed from the command line, and shown without secrets."""

import json
from typing import Any, Protocol

from duly.app import Duly
from duly.cli.session import CommandSession
from duly.core.display import display, display_call
from duly.core.record import RunRecord, StepRecord
from duly.core.redaction import Redaction

HIDDEN = "(arguments hidden: give --app)"
HIDDEN_RESULT = "(result hidden: give --app, or --show-args)"
HIDDEN_FROM_APP = "(arguments hidden: this application does not know the task)"
_NAMES_ALONE = Redaction()
"""Hides values with secret-looking names. Without the task, nothing more is known."""


class CallRecord(Protocol):
    """A record with a task and its arguments: a run, or a schedule."""

    @property
    def task(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class ArgumentView:
    """Returns the arguments of a call without secrets.

    Only the code declares which arguments are secret (`redact=`). Arguments of a task that is not
    registered here are therefore hidden completely, unless the user asks for them.
    """

    def __init__(self, app: Duly, session: CommandSession, /, *, show: bool) -> None:
        self._registry = app.registry
        self._hidden = HIDDEN if session.app_reference is None else HIDDEN_FROM_APP
        self._show = show

    def stored(self, call: CallRecord) -> str | None:
        """Return the stored arguments without secrets, or None if they are hidden."""
        definition = self._registry.find(call.task)
        if definition is not None:
            return definition.codec.redacted(call.arguments)
        return _NAMES_ALONE.text(call.arguments) if self._show else None

    def result(self, run: RunRecord) -> str | None:
        """Return the stored result without secrets, or None if it is hidden."""
        return self._result(run, run.result)

    def step_document(self, run: RunRecord, step: StepRecord) -> dict[str, Any]:
        """Return the JSON fields for the result of a step of this run."""
        found = self._result(run, step.result)
        shown = None if step.result is None else found
        return {"result": shown, "result_hidden": found is None}

    def _result(self, run: RunRecord, stored: str | None) -> str | None:
        definition = self._registry.find(run.task)
        if definition is not None:
            return definition.codec.redacted_result(stored, run.arguments) or "null"
        shown = _NAMES_ALONE.text(stored or "null")
        return shown if self._show or stored is None else None

    def result_text(self, run: RunRecord) -> str:
        """Return the result of the task as JSON, or the reason that it is hidden."""
        found = self.result(run)
        return HIDDEN_RESULT if found is None else found

    def step_result_text(self, run: RunRecord, step: StepRecord) -> str:
        """Return a short form of what a step returned, or why it is not shown."""
        if step.result is None:
            return ""
        found = self._result(run, step.result)
        return HIDDEN_RESULT if found is None else display(found)

    def text(self, call: CallRecord) -> str:
        """Return the arguments as one short line."""
        found = self.stored(call)
        return self._hidden if found is None else display(found)

    def full(self, call: CallRecord) -> str:
        """Return the whole call as code, or the reason that it is hidden."""
        found = self.stored(call)
        return self._hidden if found is None else display_call(call.task, found)

    def document(self, call: CallRecord) -> dict[str, Any]:
        """Return the JSON fields for the arguments."""
        found = self.stored(call)
        return {"arguments": parsed_call(found), "arguments_hidden": found is None}


def parsed_call(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return stored arguments as data. Those of a call are split into args and kwargs."""
    match parsed(text):
        case [list() as args, dict() as kwargs]:
            return {"args": args, "kwargs": kwargs}
        case other:
            return other


def parsed(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return stored JSON as data, or the text itself if it is damaged."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
