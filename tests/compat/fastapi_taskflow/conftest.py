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
    """Return a function that makes managers on the test's store, like several processes."""
    with ExitStack() as stack:

        def make(**options: Any) -> TaskManager:
            duly = stack.enter_context(closing(Duly(store_url)))
            return TaskManager(duly=duly, **options)

        yield make


@pytest.fixture
def manager(manager_of: Callable[..., TaskManager]) -> TaskManager:
    """Return a manager with the default options."""
    return manager_of(process_shutdown_timeout=1.0)


def serving(manager: TaskManager) -> TestClient:
    """Return a client of an application that only runs its manager."""
    app = FastAPI()
    manager.init_app(app)
    return TestClient(app)


def adding(manager: TaskManager) -> ManagedBackgroundTasks:
    """Return the task object that an endpoint would receive."""
    return ManagedBackgroundTasks(manager)
