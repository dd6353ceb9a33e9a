"""Opens stores by their addresses."""

import os
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from duly.clock import Clock
from duly.core.addresses import shown_address, shown_scheme, without_driver
from duly.errors import StoreRefused
from duly.file_owners import is_open_to_all
from duly.store import migrator
from duly.store.private_files import make_private_folder
from duly.store.protocol import Store

if TYPE_CHECKING:  # A supervisor does not load the modules of tasks.
    from duly.store.task_transaction import TaskTransactionDriver

STORES = ("sqlite", "postgresql", "postgres")
"""The schemes of store addresses."""


def open_store(
    url: str,
    *,
    clock: Clock | None = None,
    migrate: bool = True,
    task_driver: "TaskTransactionDriver | None" = None,
) -> Store:
    """Open a store. Set up an empty database; refuse one with an unsuitable schema.

    `task_driver` opens the transactions of tasks. The default is to use the store's connections.
    """
    url = without_driver(url)
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from duly.store.sqlite.store import PACKAGE, SqliteStore  # noqa: PLC0415 - one driver only

        store: Store = SqliteStore(sqlite_path(url), clock=clock, task_driver=task_driver)
        package = PACKAGE
    elif scheme in {"postgresql", "postgres"}:
        if util.find_spec("psycopg") is None:
            message = "PostgreSQL needs psycopg; install it with: pip install 'duly[postgres]'"
            raise StoreRefused(message)
        from duly.store.postgres import store as postgres  # noqa: PLC0415 - an optional extra

        store = postgres.PostgresStore(url, task_driver=task_driver)
        package = postgres.PACKAGE
    elif scheme in {"redis", "rediss", "unix"}:
        message = (
            "Redis can store the keys of a guard, Guard(url), but no runs; use sqlite:///file.db "
            "or postgresql://user@host/database"
        )
        raise StoreRefused(message)
    else:
        message = (
            f"{shown_scheme(url)} is not a supported store URL; use sqlite:///file.db or "
            "postgresql://user@host/database"
        )
        raise StoreRefused(message)
    if migrate:
        try:
            migrator.ensure(store, package, store.shown_url)
        except BaseException:
            store.close()
            raise
    return store


def sqlite_path(url: str) -> Path:
    """Return the file of `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or len(path) < 2 or parts.query:  # noqa: PLR2004 - "/" and a name
        shown = shown_address(url.partition("?")[0])
        message = f"{shown!r} is not of the form sqlite:///relative.db or sqlite:////absolute.db"
        if parts.query:
            message += "; parameters after a ? are not supported"
        raise StoreRefused(message)
    if path == "/:memory:":
        message = "runs must outlive this process, so they need a file: use sqlite:///duly.db"
        raise StoreRefused(message)
    return Path(path[1:]).absolute()


def runtime_folder(store: Store) -> Path:
    """Return the folder for the shared memory of this host's workers."""
    folder = getattr(store, "folder", None)
    if folder is None:
        # The driver of a store without a folder has already loaded this module. The other stores
        # avoid loading its archive modules.
        import tempfile  # noqa: PLC0415

        name = f"duly-{os.getuid()}"
        folder = Path(tempfile.gettempdir()) / name
    place = Path(folder)
    make_private_folder(place)
    found = place.stat()
    if found.st_uid != os.geteuid():
        message = (
            f"{place} belongs to user {found.st_uid}; remove it when no worker of that user runs. "
            "A worker creates it again"
        )
        raise StoreRefused(message)
    if is_open_to_all(found):
        raise StoreRefused(f"every user can write to {place}: run `chmod 700 {place}`")
    return place
