"""The address of a store that lies in one of Django's databases."""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

_OF_DJANGO = frozenset(
    {"assume_role", "isolation_level", "pool", "server_side_binding", "cursor_factory", "context"}
)
"""Options that Django and psycopg take, and that the server's library does not know."""


def url_of(alias: str) -> str:
    """Return the address of a database of Django's, the one for tests while those run."""
    connection = connections[alias]
    # Those of all threads: a thread's own connection may be older than they are.
    settings: dict[str, Any] = connections.settings[alias]
    if connection.vendor == "sqlite":
        name = str(settings["NAME"])
        if name == ":memory:" or "mode=memory" in name:
            raise ImproperlyConfigured(
                f"the database {alias!r} lies in memory, where no worker could see its runs"
            )
        return f"sqlite:///{quote(str(Path(name).absolute()))}"
    if connection.vendor == "postgresql":
        return _postgresql(settings)
    raise ImproperlyConfigured(
        f"the database {alias!r} is a {connection.display_name}; duly keeps runs in SQLite or "
        f"PostgreSQL: name such a database by OPTIONS={{'database': …}} or {{'url': …}}"
    )


def _postgresql(settings: dict[str, Any]) -> str:
    given = {
        "dbname": settings["NAME"],
        "user": settings["USER"],
        "password": settings["PASSWORD"],
        "host": settings["HOST"],
        "port": settings["PORT"],
    }
    options = {name: value for name, value in settings["OPTIONS"].items() if name not in _OF_DJANGO}
    found = {
        name: str(value) for name, value in (given | options).items() if value not in {"", None}
    }
    return f"postgresql://?{urlencode(found, quote_via=quote)}"
