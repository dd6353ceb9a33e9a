"""`manage.py duly status` and `duly dev`."""

from io import StringIO

from django.core.management import call_command

from duly.integrations.django import scheduled_task
from duly.integrations.django.testing import drain
from tests.integrations.django import tasks


def status() -> str:
    out = StringIO()
    call_command("duly", "status", stdout=out)
    return out.getvalue()


def test_status_says_who_works_what_waits_and_what_is_dead(backend):
    scheduled_task(cron="0 2 * * *", name="nightly", args=[1])(tasks.add)
    backend.app.schedules.sync()
    tasks.divide.enqueue(1, 0)
    drain()
    tasks.add_on_the_loop.enqueue(1)

    said = status()

    assert "TASKS['default']" in said
    assert "0 live" in said
    assert "mail: 1 ready, 0 waiting, 0 running" in said
    assert "1 letters" in said
    assert "nightly: active, next" in said
    with backend.app.worker():
        assert "1 live" in status()
