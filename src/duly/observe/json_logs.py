"""Log lines as JSON, one object each: nothing in a message can begin a line or move a cursor."""

import json
import logging
from datetime import UTC, datetime

_FIELDS = (
    *("run_id", "task", "queue", "attempt", "outcome", "state", "error", "worker_id"),
    *("waited_seconds", "duration_seconds"),
    *("tasks", "queues", "schedules", "processes", "concurrency", "async_limit"),
)
"""What lines of duly carry beside their message, each where it is known."""


class JsonFormatter(logging.Formatter):
    """For any handler: `handler.setFormatter(JsonFormatter())`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; all that is not ASCII is escaped."""
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
        # Control characters and those that set a direction are escaped with the rest; what a
        # user's own record carries under our names may be anything.
        return json.dumps(line, ensure_ascii=True, default=repr)
