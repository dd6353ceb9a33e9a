"""The logger of one attempt of a run."""

import logging
from itertools import count
from typing import Protocol

from duly.core.escape import clean
from duly.core.record import Claim
from duly.limits import LOG_LINES_PER_ATTEMPT


class LogSink(Protocol):
    """Stores the lines of runs."""

    def log(self, claim: Claim, level: str, message: str) -> None: ...


class RunLogger:
    """Stores log lines with the run, up to a limit, and also passes them to the logger `duly.run`.

    The limit applies to the attempt, including lines that its threads log after its body has ended.
    """

    def __init__(self, claim: Claim, sink: LogSink) -> None:
        self._claim = claim
        self._sink = sink
        self._numbers = count(1)

    def debug(self, message: str, *args: object) -> None:
        """Log at level debug."""
        self._write(logging.DEBUG, message, args)

    def info(self, message: str, *args: object) -> None:
        """Log at level info."""
        self._write(logging.INFO, message, args)

    def warning(self, message: str, *args: object) -> None:
        """Log at level warning."""
        self._write(logging.WARNING, message, args)

    def error(self, message: str, *args: object) -> None:
        """Log at level error."""
        self._write(logging.ERROR, message, args)

    def _write(self, level: int, message: str, args: tuple[object, ...]) -> None:
        # Like the standard logger, this accepts any object as the message.
        text = str(message) % args if args else str(message)
        claim, number = self._claim, next(self._numbers)
        if number < LOG_LINES_PER_ATTEMPT:
            self._sink.log(claim, logging.getLevelName(level).lower(), text)
        elif number == LOG_LINES_PER_ATTEMPT:
            left_out = f"more than {number} lines: the rest is omitted"
            self._sink.log(claim, "warning", left_out)
        about = {
            "run_id": claim.run_id,
            "task": claim.task,
            "queue": claim.queue,
            "attempt": claim.attempt,
        }
        logging.getLogger("duly.run").log(level, "%s: %s", claim.run_id, clean(text), extra=about)
