"""The store of an application: its address, and the store that each process opens."""

from duly.clock import Clock
from duly.context import is_inside_body_of
from duly.core.addresses import without_driver
from duly.errors import StoreRefused
from duly.store.per_process import PerProcess
from duly.store.protocol import Store

TEST_URLS: set[str] = set()
"""The store URLs of tests that run in this process. While there are any, no other may be used."""


class AppStore:
    """The store of an application. Each process opens its own at the first use."""

    def __init__(self, url: str) -> None:
        self._url = without_driver(url)
        self._clock: Clock | None = None
        self._store = PerProcess(self._open_store)

    @property
    def store(self) -> Store:
        """The open store. Each process opens its own, including forked processes."""
        if TEST_URLS and self._url not in TEST_URLS:
            raise StoreRefused(
                "this application does not belong to the harness of the running test, so it cannot "
                "use its store, which may be a real one: name it as duly_app in pytest.ini or with "
                "@pytest.mark.duly(app=…), or give it its own Harness"
            )
        return self._store.get()

    def _open_store(self) -> Store:
        from duly.store.store_factory import open_store  # noqa: PLC0415 - slow to import

        return open_store(self._url, clock=self._clock)

    @property
    def url(self) -> str:
        """The address of the store, whether open or not."""
        return self._url

    def use_url(self, url: str, *, clock: Clock | None = None) -> None:
        """Use another store from now on. For workers and commands that get a store address.

        `clock` replaces the clock of a store that uses the host's time. Tests pass it.
        """
        self._store.close()
        self._url, self._clock = without_driver(url), clock

    def keep_store(self) -> Store:
        """Return the store for a worker that owns this process. `close` then leaves it open."""
        store = self.store
        self._store.keep()
        return store

    @property
    def is_open(self) -> bool:
        """True if this process has the store open."""
        return self._store.is_open

    def close(self) -> None:
        """Close the store. The next use opens it again.

        Inside a task this does nothing, because the worker that runs the task still needs the
        store.
        """
        if not is_inside_body_of(self._store.opened):
            self._store.close()
