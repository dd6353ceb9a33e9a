"""What transactions of callers in this process may hold, so that nobody waits for itself."""

from collections.abc import Iterable

from duly.store.ops import Enqueue, Op
from duly.store.step_ops import SendEvent

_MOST = 1_000


class OwnKeys:
    """Keys and events that were last named on connections that are not ours."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | None, str], None] = {}
        """By task; those of events have none."""

    def note(self, op: Enqueue | SendEvent) -> None:
        """Remember the key or the event that an op names, if it names one."""
        if isinstance(op, SendEvent):
            self._known[None, op.name] = None
        elif op.key is not None:
            self._known[op.task, op.key.text] = None
        while len(self._known) > _MOST:
            self._known.pop(next(iter(self._known)), None)

    def has_key(self, task: str, key: str) -> bool:
        """Say whether a caller of this process may hold a key."""
        return (task, key) in self._known

    def has_event_of(self, ops: Iterable[Op]) -> bool:
        """Say whether a caller of this process may hold an event that one of the ops sends."""
        names = [op.name for op in ops if isinstance(op, SendEvent)]
        return any((None, name) in self._known for name in names)
