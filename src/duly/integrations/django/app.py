"""The `Duly` application of a Django task backend. All threads share one per alias."""

import threading
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS

from duly import Duly
from duly.api.schedules import Schedules
from duly.app_protocol import AppProtocol
from duly.errors import BadOption
from duly.extend import report_error
from duly.integrations.django.databases import (
    external_store,
    is_in_memory,
    is_in_test_case,
    is_only_connection,
    is_testing,
    url_of,
)
from duly.integrations.django.task_transaction import DjangoTaskTransactionDriver
from duly.store.migrator import check
from duly.store.ops.runs import Enqueue
from duly.store.protocol import Store
from duly.store.store_factory import open_store

if TYPE_CHECKING:
    from duly.extend import EmbeddedWorker


class DjangoDuly(Duly):
    """A `Duly` in a Django database. It uses Django's connections unless it runs tasks.

    A program that only enqueues and reads therefore opens no other connections. It sees what its
    open transaction wrote, and it works on databases that only Django can reach, as in tests.
    """

    def __init__(self, database: str) -> None:
        # The address is only known once Django is set up, and it differs while tests run.
        super().__init__("sqlite:///")
        self.database = database
        self.runs_tasks = False
        """Whether this process has a worker, which needs its own connections."""
        self._joins_transactions = True
        self._external_store: tuple[tuple[str, bool], Store] | None = None
        self._own_connections_app: DjangoDuly | None = None
        self._project_schedules = ProjectSchedules(self)

    @property
    def url(self) -> str:
        """The address of the database that Django uses under this alias now."""
        return url_of(self.database)

    @property
    def store(self) -> Store:
        """The store in the database that Django uses now.

        Inside a Django transaction the store uses the connection of that transaction, also in a
        worker.
        """
        if not self.runs_tasks or self._is_in_transaction():
            return self.store_on_django_connection()
        return self.store_on_own_connections()

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the store. Django's connections open by themselves."""
        return not self.runs_tasks or super().is_open

    def worker(self, **settings: Any) -> "EmbeddedWorker":  # noqa: ANN401 - those of Duly's
        """Return a worker for this process; see `Duly.worker`."""
        if self._is_in_transaction():
            raise BadOption(
                "a worker cannot see the uncommitted writes of an open transaction on the "
                f"database {self.database!r}: start the worker outside of the transaction; in a "
                "TestCase, run tasks with duly.integrations.django.testing.drain()"
            )
        _ = (
            self.url
        )  # Raises for a private database in memory, which a worker's own connection would not see.
        self.runs_tasks = True
        return super().worker(**settings)

    @property
    def schedules(self) -> Schedules:
        """Cron schedules; see `Duly.schedules`."""
        return self._project_schedules

    def with_own_connections(self) -> "DjangoDuly":
        """Return an application with the same tasks and schedules on its own connections.

        A worker in a process that also serves requests uses it, so requests stay in their
        transactions. In tests, return this application.
        """
        if self.runs_tasks or self.is_inline():
            return self
        with self._lazy_lock:
            if self._own_connections_app is None:
                self._own_connections_app = DjangoDuly(self.database)
                self._own_connections_app.runs_tasks = True
                self._own_connections_app._joins_transactions = False  # noqa: SLF001 - of this class
                self._own_connections_app.registry, self._own_connections_app.bus = (
                    self.registry,
                    self.bus,
                )
            self._own_connections_app._project_schedules.share_definitions(self._project_schedules)  # noqa: SLF001 - of this class
        return self._own_connections_app

    def close(self) -> None:
        """Close the store. The next use opens it again."""
        super().close()
        if self._own_connections_app is not None:
            self._own_connections_app.close()

    def _open_store(self) -> Store:
        driver = DjangoTaskTransactionDriver(self.database, self._report_callback_error)
        store = open_store(self._url, migrate=False, task_driver=driver)
        try:
            self._check(store)
        except BaseException:
            store.close()
            raise
        return store

    def _report_callback_error(self, error: BaseException) -> None:
        report_error(self, "a callback of transaction.on_commit", error)

    def store_on_django_connection(self) -> Store:
        """Return the store on the connection that Django uses in the calling thread."""
        kind = str(connections.settings[self.database]["NAME"]), self.runs_tasks
        if self._external_store is None or self._external_store[0] != kind:
            store = external_store(self.database)
            self._check(store)
            is_out_of_reach = is_in_memory(self.database) or is_in_test_case(self.database)
            if self.runs_tasks and not is_out_of_reach:
                store.wake = self._wake  # type: ignore[method-assign]
            self._external_store = kind, store
        return self._external_store[1]

    def _wake(self, *ops: Enqueue) -> None:
        """Send a hint after the commit, on the worker's own connections."""
        self.store_on_own_connections().wake(*ops)

    def store_on_own_connections(self) -> Store:
        """Return the store on duly's own connections, even if a transaction is open."""
        if self._url != self.url:
            self.use_url(self.url)
        return super().store

    def _check(self, store: Store) -> None:
        is_sqlite = connections[self.database].vendor == "sqlite"
        check(
            store.read_schema(),
            "duly.store.sqlite" if is_sqlite else "duly.store.postgres",
            f"the database {self.database!r}",
            migrate=f"`python manage.py migrate --database {self.database}`",
        )

    def _lock_app(self) -> AppProtocol:
        return _LockStoreProvider(self)

    def _is_in_transaction(self) -> bool:
        return self._joins_transactions and bool(connections[self.database].in_atomic_block)

    def is_only_connection(self) -> bool:
        """Return whether only Django's connection in this thread can use the database now."""
        return is_only_connection(self.database)

    def is_inline(self) -> bool:
        """Return whether schedules fire and executions run in the calling thread.

        They do in tests, where backends and connections belong to one thread.
        """
        return self.is_only_connection() or is_testing()


class _LockStoreProvider:
    """Takes locks on duly's own connections, where that is possible.

    A lock taken inside an open Django transaction would be invisible to other processes.
    """

    def __init__(self, app: DjangoDuly) -> None:
        self._app = app
        self.settings, self.registry = app.settings, app.registry
        self.before_calls = app.before_calls

    @property
    def store(self) -> Store:
        """The store that a lock is taken in now."""
        app = self._app
        return (
            app.store
            if app.is_only_connection()
            else app.with_own_connections().store_on_own_connections()
        )


class ProjectSchedules(Schedules):
    """The schedules of one application in a project whose code may define schedules for several.

    Several applications have tasks from the same modules, so a schedule that one does not define
    belongs to another.
    """

    def share_definitions(self, others: Schedules) -> None:
        """Use the definitions of another application, including later ones."""
        self._defined = others._defined  # noqa: SLF001 - of this class

    def is_defined(self, name: str) -> bool:
        """Return whether the project defines a schedule of that name, for any backend."""
        with _mutex:
            apps = [app for _, app in _apps.values()]
        return any(Schedules.is_defined(app.schedules, name) for app in apps)


_apps: dict[str, tuple[dict[str, Any], Duly]] = {}
_mutex = threading.Lock()


def app_for(alias: str, options: dict[str, Any]) -> Duly:
    """Return the application of a backend. Django creates a backend for each thread."""
    with _mutex:
        known = _apps.get(alias)
        if known is not None and known[0] == options:
            return known[1]
        url = options.get("url")
        app = Duly(url) if url is not None else DjangoDuly(options.get("database", "default"))
        _apps[alias] = (dict(options), app)
        return app


def close_own_connections(connection: Any, **_signal: Any) -> None:  # noqa: ANN401 - Django's
    """Close duly's own connections when Django opens one to create or drop a test database.

    PostgreSQL does not drop a database that has open connections. Django's connection without a
    database is used only to create and drop databases.
    """
    if connection.alias == NO_DB_ALIAS:
        with _mutex:
            apps = [app for _, app in _apps.values()]
        for app in apps:
            if isinstance(app, DjangoDuly):
                app.close()


def scheduler_app() -> DjangoDuly:
    """Return the application that fires tasks of other backends."""
    database = getattr(settings, "DULY_DATABASE", "default")
    found = app_for("duly.scheduler", {"database": database})
    assert isinstance(found, DjangoDuly)  # noqa: S101 - it uses a Django database
    return found
