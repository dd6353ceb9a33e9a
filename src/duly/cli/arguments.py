"""The arguments and results of calls as text, or the reason that they are hidden."""

from duly.app import Duly
from duly.cli.session import CommandSession
from duly.core.call_view import CallView, StoredCall
from duly.core.display import display, display_call
from duly.core.record import RunRecord, StepRecord

HIDDEN = "(arguments hidden: give --app)"
HIDDEN_RESULT = "(result hidden: give --app, or --show-args)"
HIDDEN_FROM_APP = "(arguments hidden: this application does not know the task)"
HIDDEN_MISFIT = "(arguments hidden: they do not fit the task, so it is unknown which are secret)"


class ArgumentView:
    """Shows arguments of registered tasks, and those of other tasks only if the user asks."""

    def __init__(self, app: Duly, session: CommandSession, /, *, show: bool) -> None:
        self.calls = CallView(app.registry, shows_unregistered=show)
        self._hidden = HIDDEN if session.app_reference is None else HIDDEN_FROM_APP

    def result_text(self, run: RunRecord) -> str:
        """Return the result of the task as JSON, or the reason that it is hidden."""
        found = self.calls.result(run)
        return HIDDEN_RESULT if found is None else found

    def step_result_text(self, run: RunRecord, step: StepRecord) -> str:
        """Return a short form of the result of a step, or the reason that it is hidden."""
        if step.result is None:
            return ""
        found = self.calls.step_result(run, step)
        return HIDDEN_RESULT if found is None else display(found)

    def text(self, call: StoredCall) -> str:
        """Return the arguments as one short line."""
        found = self.calls.arguments(call)
        return self._why_hidden(call) if found is None else display(found)

    def full(self, call: StoredCall) -> str:
        """Return the whole call as code, or the reason that it is hidden."""
        found = self.calls.arguments(call)
        return self._why_hidden(call) if found is None else display_call(call.task, found)

    def _why_hidden(self, call: StoredCall) -> str:
        return HIDDEN_MISFIT if self.calls.is_registered(call) else self._hidden
