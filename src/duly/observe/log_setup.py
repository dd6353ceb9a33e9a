"""How worker processes write their logs: lines of text or of JSON, on stderr."""

import logging
import os
import sys
import time
from contextlib import suppress

from duly.core.escape import clean, clean_lines
from duly.errors import DulyError
from duly.observe.json_logs import JsonFormatter

LEVEL = "DULY_LOG_LEVEL"
FORMAT = "DULY_LOG_FORMAT"
_INDENT = "    "
_SECOND = "%Y-%m-%dT%H:%M:%S"


class LineFormatter(logging.Formatter):
    """One line per entry, which no text in it can end. A traceback follows, indented.

    Times are in UTC, in the form of the JSON lines.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._second = (0, "")
        """The last second for which a time was written, and how: many lines share one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line and the indented lines after it, which cannot be mistaken for entries."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        lines = [clean(self.formatMessage(record))]
        if record.exc_info:
            lines.append(_indented(self.formatException(record.exc_info)))
        elif record.exc_text:
            lines.append(_indented(record.exc_text.rstrip("\n")))
        if record.stack_info:
            lines.append(_indented(record.stack_info))
        return "\n".join(lines)

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the standard library's
        """Return the time of a record; the lines of one second share most of it."""
        second, text = self._second
        if int(record.created) != second:
            second, text = int(record.created), super().formatTime(record, datefmt or _SECOND)
            self._second = second, text
        return f"{text}.{int(record.msecs):03}Z"


def set_up_logging(level: str, form: str) -> None:
    """Log to stderr, here and in the processes that this one starts."""
    os.environ[LEVEL] = level
    os.environ[FORMAT] = form
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else LineFormatter())
    logging.basicConfig(level=level, handlers=[handler])


def set_up_inherited_logging() -> None:
    """Log in the same way as the parent process."""
    set_up_logging(os.environ.get(LEVEL) or "INFO", os.environ.get(FORMAT) or "text")


def write_failure(error: DulyError, explained: str) -> None:
    """Write why a process cannot start: in full for people, or as one line of JSON.

    If that cannot be written, the exit status still shows the failure.
    """
    if os.environ.get(FORMAT) == "json":
        record = logging.makeLogRecord(
            {"name": "duly", "levelname": "ERROR", "msg": str(error), "error": type(error).__name__}
        )
        record.exc_text = explained if error.__cause__ else None
        text = JsonFormatter().format(record)
    else:
        text = clean_lines(explained.rstrip())
    with suppress(OSError):
        sys.stderr.write(f"{text}\n")


def _indented(text: str) -> str:
    return "\n".join(_INDENT + line for line in clean_lines(text).split("\n"))
