"""The PostgreSQL database and store that the tests of this folder run on."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duly.store.store_factory import open_store
from tests.servers.postgres import PostgresEndpoint
from tests.store.conformance.verbs import register


@pytest.fixture
def url(postgres_server: PostgresEndpoint) -> Iterator[str]:
    """A fresh database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    """A store in the database, with a live worker."""
    with closing(open_store(url)) as store:
        register(store)
        yield store


@pytest.fixture
def connection(url: str, store: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the application to the same database, which commits on request."""
    with closing(psycopg.connect(url)) as connection:
        yield connection
