"""An address that an application has for SQLAlchemy is also one for duly."""

from contextlib import closing

import pytest

from duly import Duly
from duly.guard import Guard


@pytest.mark.stores("sqlite-wal", "postgres")
def test_the_driver_in_an_address_is_ignored(folder, url, monkeypatch, cli):
    scheme, _, rest = url.partition("://")
    given = f"{scheme}+driver://{rest}"
    monkeypatch.setenv("DULY_URL", given)

    for app in (Duly(given), Duly()):
        assert app.url == app.store.url == url
        app.close()
    with closing(Guard(given)) as guard:
        assert guard.look("key") is None
    assert cli("runs", "list", "--url", given).exit_code == 0
    assert cli("db", "status").exit_code == 0
