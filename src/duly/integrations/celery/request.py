"""The request of a message in the worker's main process, which enforces hard time limits."""

from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request

from duly.integrations.celery.dead_letters import write_timeout_dead_letter


class TimeLimitedRequest(Request):
    """Write the dead letter of a task that its hard time limit kills, since the task cannot."""

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - as Celery calls it
        """Write the dead letter of a hard time limit, then handle it as Celery does."""
        try:
            if not soft:
                self._write_dead_letter(TimeLimitExceeded(timeout))
        finally:
            # This call acknowledges the message, so the dead letter must be written before.
            super().on_timeout(soft, timeout)

    def _write_dead_letter(self, error: TimeLimitExceeded) -> None:
        # The dead letter records where the message came from, which the request stack has.
        self.task.request_stack.push(self._context)
        try:
            write_timeout_dead_letter(self.task, tuple(self.args), self.kwargs, error)
        finally:
            self.task.request_stack.pop()
