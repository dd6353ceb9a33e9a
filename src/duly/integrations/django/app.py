"""The `Duly` behind a task backend of Django's: one per alias, whichever thread asks."""

import threading
from typing import Any

from duly.app import Duly
from duly.errors import SchemaMismatch
from duly.integrations.django.databases import url_of
from duly.store.migrator import newest
from duly.store.opening import open_store
from duly.store.protocol import Store


class DjangoDuly(Duly):
    """A `Duly` whose tables are made by `manage.py migrate`, in a database of Django's."""

    def __init__(self, database: str) -> None:
        # Which database that is is known when Django is set up, and another one while tests run.
        super().__init__("sqlite:///")
        self.database = database

    @property
    def url(self) -> str:
        """The address of the database that Django uses under this alias now."""
        return url_of(self.database)

    @property
    def store(self) -> Store:
        """The store in the database that Django uses now."""
        if self._url != self.url:
            self.use_url(self.url)
        return super().store

    def _open_store(self) -> Store:
        store = open_store(self._url, migrate=False)
        schema = store.read_schema()
        package = "duly.store.sqlite" if self._url.startswith("sqlite") else "duly.store.postgres"
        if schema.version < newest(package) or schema.oldest_code > newest(package):
            store.close()
            raise SchemaMismatch(
                f"the tables of duly in the database {self.database!r} are of version "
                f"{schema.version}, and this code needs {newest(package)}: run "
                f"`python manage.py migrate --database {self.database}`"
            )
        return store


_apps: dict[str, tuple[dict[str, Any], Duly]] = {}
_mutex = threading.Lock()


def app_for(alias: str, options: dict[str, Any]) -> Duly:
    """Return the application of a backend; Django makes a backend anew for each thread."""
    with _mutex:
        known = _apps.get(alias)
        if known is not None and known[0] == options:
            return known[1]
        url = options.get("url")
        app = Duly(url) if url is not None else DjangoDuly(options.get("database", "default"))
        _apps[alias] = (dict(options), app)
        return app
