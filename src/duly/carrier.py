"""What brings runs to another engine's workers, seen from below."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """Says that an attempt at a run may begin. Lost, it is sent again; doubled, it does nothing."""

    run_id: str
    claim_number: int
    """How often the run was claimed before: only while that holds can the message claim it."""
    task: str
    queue: str
    priority: int


class Carrier(Protocol):
    """An engine whose workers run tasks of ours."""

    def attach(self, app: Any) -> None:  # noqa: ANN401 - the application, which is a layer above
        """Get to know the application whose tasks name this carrier; said again, do nothing."""
        ...

    def send(self, messages: Sequence[Message]) -> None:
        """Give messages to the engine; raise if one may not have arrived."""
        ...
