"""The queues that a worker serves, in the form of the worker's row."""

import json
from typing import NamedTuple

from duly.core.key import check_queue
from duly.errors import BadOption


class ServedQueues(NamedTuple):
    """Named queues; or every queue, possibly with exceptions."""

    names: tuple[str, ...] = ()
    """Empty for every queue."""
    excluded: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> "ServedQueues":
        """Return the queues of a stored text: a list of names, or an object with the exceptions."""
        found = json.loads(text)
        if isinstance(found, dict):
            return cls(excluded=tuple(found["except"]))
        return cls(tuple(found))

    @property
    def is_every(self) -> bool:
        """True if the worker serves every queue."""
        return not self.names and not self.excluded

    def includes(self, queue: str) -> bool:
        """Return whether the worker serves a queue."""
        return queue in self.names if self.names else queue not in self.excluded

    def stored(self) -> str:
        """Return the text to store."""
        return json.dumps({"except": list(self.excluded)} if self.excluded else list(self.names))

    def shown(self, every: str = "all") -> str:
        """Return a text for people."""
        if self.excluded:
            return f"{every} except {', '.join(self.excluded)}"
        return ", ".join(self.names) or every


def parse_queues(text: str | None) -> tuple[tuple[str, int | None], ...]:
    """Return the names and limits in a text such as `mail:20,default`."""
    if text is not None and not isinstance(text, str):
        message = f'queues must be a string such as "mail:20,default", not {text!r:.80}'
        raise BadOption(message)
    found = []
    for item in filter(None, (text or "").split(",")):
        name, colon, limit = item.strip().rpartition(":")
        if not colon:
            name, limit = limit, ""
        if not name or (colon and (not limit.isdigit() or int(limit) < 1)):
            message = f"queue {item!r} is not of the form name or name:limit"
            raise BadOption(message)
        found.append((check_queue(name), int(limit) if limit else None))
    return tuple(found)


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of queues in a text such as `mail,default`."""
    return tuple(check_queue(name) for name in map(str.strip, text.split(",")) if name)
