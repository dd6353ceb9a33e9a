"""The guard in the configuration of a Celery application."""

import celery
import pytest
from kombu.transport.redis import Channel

from duly.errors import BadOption
from duly.integrations.celery import guard_of
from duly.limits import GUARD_LEASE_SECONDS

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


def test_the_page_names_the_settings_by_which_a_killed_workers_messages_come_back(app):
    times = (
        Channel.visibility_timeout,
        # kombu 5.6 has these two as numbers in its code.
        getattr(Channel, "unacked_restore_interval", 10),
        getattr(Channel, "unacked_restore_throttle", 10),
        Channel.unacked_mutex_expire,
    )

    assert (*times, app.conf.worker_prefetch_multiplier) == (3600, 10, 10, 300, 4)
    assert GUARD_LEASE_SECONDS == 30
