"""No message, repr or traceback shows the password in the address of a database."""

import traceback

import pytest

from duly import Duly
from duly.compat.fastapi_taskflow import SqliteBackend
from duly.errors import DulyError
from duly.guard import Guard
from duly.settings import load_settings
from duly.store.store_factory import open_store

SECRET = "hunter2"  # noqa: S105 - a canary

MALFORMED = (
    f"postgresql:/ann:{SECRET}@127.0.0.1/shop",
    f"ann:{SECRET}@127.0.0.1/shop",
    f"host=127.0.0.1 user=ann password={SECRET}",
    f"postgresql//ann:{SECRET}@127.0.0.1/shop",
    f"ann:{SECRET}://127.0.0.1/shop",
    f"mysql://ann:{SECRET}@127.0.0.1/shop",
    f"sqlite://ann:{SECRET}@127.0.0.1/shop.db",
    f"sqlite:///shop.db?key={SECRET}",
    f"postgresql://ann:x/{SECRET}@127.0.0.1:1/shop",
    f"postgresql://ann:{SECRET}/x@127.0.0.1:1/shop",
    f"postgresql://ann:x@{SECRET}@127.0.0.1:1/shop",
    f"postgresql://ann:{SECRET}",
    f"postgresql://127.0.0.1:1/shop?pass%77ord={SECRET}&nonsense=1",
    f"postgresql://127.0.0.1:1/shop?sslpassword={SECRET}",
    f"postgresql://127.0.0.1:1/shop?password=x&{SECRET}",
    f"postgresql://127.0.0.1:1/shop?{SECRET}",
)


def everything_said(error: BaseException) -> str:
    """Return everything a log of this error would contain."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("url", MALFORMED)
def test_the_error_for_an_address_that_cannot_be_opened_hides_the_password(url):
    with pytest.raises(DulyError) as caught:
        open_store(url)

    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        *MALFORMED,
        f"redis:/:{SECRET}@127.0.0.1:1/0",
        f"redis://:{SECRET}@127.0.0.1:none/0",
        f"redis://:x/{SECRET}@127.0.0.1:1/0",
        f"redis://127.0.0.1:1/0?password={SECRET}",
        f"redis://127.0.0.1:1/0?password=x@{SECRET}",
        f"rediss://127.0.0.1:1/0?ssl_password={SECRET}",
    ],
)
def test_the_error_for_a_ledger_that_cannot_be_opened_hides_the_password(url):
    with pytest.raises(DulyError) as caught:
        Guard(url).look("key")

    assert SECRET not in everything_said(caught.value)


@pytest.mark.parametrize("url", [f"postgresql://ann:{SECRET}@127.0.0.1/shop", *MALFORMED])
def test_the_settings_of_an_application_show_no_password(url):
    assert SECRET not in repr(Duly(url).settings)


@pytest.mark.parametrize("url", [f"redis://:{SECRET}@h".encode(), [f"redis://:{SECRET}@h"]])
def test_the_error_for_an_address_of_the_wrong_type_hides_the_address(url):
    with pytest.raises(DulyError) as caught:
        load_settings(url=url)

    assert SECRET not in everything_said(caught.value)


def test_the_error_for_an_address_in_place_of_a_file_hides_the_address():
    with pytest.raises(DulyError) as caught:
        SqliteBackend(f"postgresql://ann:{SECRET}@127.0.0.1/shop")

    assert SECRET not in everything_said(caught.value)
