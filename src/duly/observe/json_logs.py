"""Log lines as JSON objects. A message cannot start a new line or move a cursor."""

import json
import logging
from datetime import UTC, datetime

_FIELDS = (
    *("run_id", "task", "queue", "attempt", "outcome", "state", "error", "worker_id"),
    *("waited_seconds", "duration_seconds"),
    *("tasks", "queues", "schedules", "processes", "concurrency", "async_limit"),
)
"""The fields of duly's log lines in addition to the message, where they are known."""


class JsonFormatter(logging.Formatter):
    """For any handler: `handler.setFormatter(JsonFormatter())`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with everything that is not ASCII escaped."""
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        for name in _FIELDS:
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["traceback"] = record.exc_text
        # Control characters and text-direction characters are escaped with the rest. A user's own
        # record may contain objects of any type under these names.
        return json.dumps(line, ensure_ascii=True, default=repr)
