"""What tasks, runs and the API need of the application they belong to."""

from typing import Protocol

from duly.registry import Registry
from duly.store.protocol import Store


class Host(Protocol):
    """The application, seen from below."""

    registry: Registry

    @property
    def store(self) -> Store:
        """The open store of this process."""
        ...
