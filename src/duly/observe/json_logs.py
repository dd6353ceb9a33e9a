"""Log lines as JSON, one object each: nothing in a message can begin a line or move a cursor."""

import json
import logging
from datetime import UTC, datetime


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
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Control characters and those that set a direction are escaped with the rest.
        return json.dumps(line, ensure_ascii=True)
