"""A message as the worker's main process has it, which is where hard time limits are noticed."""

from celery.worker.request import Request


class RoutedRequest(Request):
    """Lets `on_failure` of its task see where the message came from."""

    def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 - as Celery calls it
        """Note a time limit."""
        self.task.request_stack.push(self._context)
        try:
            super().on_timeout(soft, timeout)
        finally:
            self.task.request_stack.pop()
