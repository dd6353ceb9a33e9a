"""The guard in the configuration of a Celery application."""

import celery
import pytest

from duly.errors import BadOption
from duly.integrations.celery import guard_of

SECRET = "hunter2"  # noqa: S105 - a canary


@pytest.fixture
def app() -> celery.Celery:
    """An application that sends nothing."""
    return celery.Celery("shop", broker="memory://")


def test_what_celery_reports_of_its_configuration_has_no_password_of_the_guard(app):
    app.conf.duly_guard_database = f"redis://:{SECRET}@127.0.0.1:1/0"

    guard = guard_of(app)

    assert guard.url == f"redis://:{SECRET}@127.0.0.1:1/0"
    assert SECRET not in app.bugreport()
    assert SECRET not in repr(app.conf.table(censored=True)), "as `celery inspect conf` has it"


def test_a_guard_of_a_wrong_type_is_refused_without_being_shown(app):
    app.conf.duly_guard_database = f"redis://:{SECRET}@127.0.0.1:1/0".encode()

    with pytest.raises(BadOption, match="not a bytes") as caught:
        guard_of(app)

    assert SECRET not in str(caught.value)
