"""The interface of the application that tasks, runs and the API need."""

from collections.abc import Callable
from typing import Protocol

from duly.registry import Registry
from duly.settings import Settings
from duly.store.protocol import Store


class AppProtocol(Protocol):
    """The application, as lower layers see it."""

    settings: Settings
    registry: Registry
    before_calls: list[Callable[[], None]]
    """Hooks that are called before a task call is accepted. A hook raises to refuse the call."""

    @property
    def store(self) -> Store:
        """The open store of this process."""
        ...
