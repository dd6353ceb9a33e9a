"""A message as the worker's main process has it, which is where hard time limits are noticed."""

from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request

from duly.integrations.celery.dead_letters import record_timed_out


class TimeLimitedRequest(Request):
    """Keeps the letter of a task that its hard time limit kills: it cannot do so itself."""

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - as Celery calls it
        """Note a time limit."""
        try:
            if not soft:
                self._keep(TimeLimitExceeded(timeout))
        finally:
            # Only now is the message acknowledged.
            super().on_timeout(soft, timeout)

    def _keep(self, error: TimeLimitExceeded) -> None:
        # Where the message came from is a part of its letter.
        self.task.request_stack.push(self._context)
        try:
            record_timed_out(self.task, tuple(self.args), self.kwargs, error)
        finally:
            self.task.request_stack.pop()
