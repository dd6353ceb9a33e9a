"""The storage of a trial: a separate file, or a separate schema in a database."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from duly.clock import new_id
from duly.store.store_factory import open_store


class ScratchFolder:
    """A temporary folder, deleted afterwards unless it is kept."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="duly-prove-"))
        self._is_kept = False

    def keep(self) -> None:
        """Keep the folder for inspection."""
        self._is_kept = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_kept:
            shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def scratch_url(url: str | None, folder: Path) -> Iterator[str]:
    """Yield the URL of a private database: a schema of its own, or a file in the folder."""
    if url is None or url.startswith("sqlite:"):
        yield f"sqlite:///{folder / 'orders.db'}"
        return
    # Raises an error with a remedy if the driver or the server is missing.
    open_store(url, migrate=False).close()
    schema = f"duly_prove_{new_id().replace('-', '')}"
    _execute(url, f"CREATE SCHEMA {schema}")
    try:
        yield _within(url, schema)
    finally:
        _execute(url, f"DROP SCHEMA {schema} CASCADE")


def _within(url: str, schema: str) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    given = query.get("options", "")
    query["options"] = f"{given} -csearch_path={schema}".strip()
    return parts._replace(query=urlencode(query, quote_via=quote)).geturl()


def _execute(url: str, sql: str) -> None:
    from duly.store.postgres.address import Address  # noqa: PLC0415 - an optional extra
    from duly.store.postgres.connection import connect  # noqa: PLC0415 - as above

    with closing(connect(Address(url), {})) as session:
        session.execute(sql)
