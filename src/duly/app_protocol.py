"""What tasks, runs and the API need of the application they belong to."""

from collections.abc import Callable
from typing import Protocol

from duly.registry import Registry
from duly.store.protocol import Store


class AppProtocol(Protocol):
    """The application, seen from below."""

    registry: Registry
    before_calls: list[Callable[[], None]]
    """Asked before a call of a task is accepted; whoever objects raises."""

    @property
    def store(self) -> Store:
        """The open store of this process."""
        ...
