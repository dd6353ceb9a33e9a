"""Managers on every kind of store."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly import Duly
from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, TaskManager


@pytest.fixture
def manager_of(store_url: str) -> Iterator[Callable[..., TaskManager]]:
    """Makes managers on the store of the test, as the processes of one deployment would have."""
    with ExitStack() as stack:

        def make(**options: Any) -> TaskManager:
            duly = stack.enter_context(closing(Duly(store_url)))
            return TaskManager(duly=duly, **options)

        yield make


@pytest.fixture
def manager(manager_of: Callable[..., TaskManager]) -> TaskManager:
    """A manager with the options that it has by itself."""
    return manager_of(process_shutdown_timeout=1.0)


def serving(manager: TaskManager) -> TestClient:
    """An application that does nothing but live with its manager."""
    app = FastAPI()
    manager.init_app(app)
    return TestClient(app)


def adding(manager: TaskManager) -> ManagedBackgroundTasks:
    """What an endpoint would be given."""
    return ManagedBackgroundTasks(manager)
