"""The SQLite store that the tests of this folder run on, in both journal modes."""

from contextlib import closing

import pytest

from duly.store.store_factory import open_store, sqlite_path
from tests.store.conformance.stores import opened_tables


@pytest.fixture
def path(store_url):
    """The file of a store in each journal mode.

    A file in rollback mode belongs to an application.
    """
    return sqlite_path(store_url)


@pytest.fixture
def store(store_url):
    """A store on the file."""
    with closing(open_store(store_url)) as store:
        yield store


@pytest.fixture
def tables(store, store_url):
    """The tables of the store."""
    with opened_tables(store_url) as tables:
        yield tables
