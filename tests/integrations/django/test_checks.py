"""System checks: what is wrong, each with its remedy."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.checks import check_backend, check_workers
from tests.integrations.django.project import using


def found(backend: DulyBackend) -> dict[str | None, str]:
    return {message.id: message.hint for message in check_backend(backend)}


def made(**options: str) -> DulyBackend:
    return DulyBackend("checked", {"OPTIONS": options})


def test_a_project_as_it_should_be_has_nothing_to_mend(backend):
    assert found(backend) == {}


@pytest.mark.stores("sqlite-wal")
def test_what_is_wrong_with_a_database_is_told_with_the_remedy(store_url, backend):
    assert "default" in found(made(database="nosuch"))["duly.E002"]
    assert found(made(url="postgresql://elsewhere")) == {}
    with pytest.raises(ImproperlyConfigured, match="not both"):
        made(database="default", url="postgresql://elsewhere")
    with pytest.raises(ImproperlyConfigured, match="databse"):
        made(databse="default")


def test_sqlite_without_immediate_transactions_is_a_warning():
    with using(default=":memory:"):
        assert "IMMEDIATE" in found(made())["duly.W001"]


def test_a_project_that_nobody_works_for_is_a_warning(backend):
    asked = check_workers(databases=["default"])
    assert [message.id for message in asked] == ["duly.W004"]
    with backend.app.worker():
        assert list(check_workers(databases=["default"])) == []
    assert list(check_workers(databases=[])) == []


@pytest.mark.untouched
def test_tables_that_are_missing_are_a_warning(store_url):
    with using(default=store_url):
        (message,) = check_workers(databases=["default"])
    assert message.id == "duly.W003"
    assert "manage.py migrate" in message.msg
