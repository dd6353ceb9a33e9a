"""`manage.py duly status` and `duly dev`."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from duly.integrations.django import scheduled_task
from duly.integrations.django.management.commands.duly import Command
from duly.integrations.django.testing import drain
from tests.integrations.django import tasks


def status() -> str:
    out = StringIO()
    call_command("duly", "status", stdout=out)
    return out.getvalue()


def test_status_lists_workers_queued_runs_and_dead_letters(backend):
    scheduled_task(cron="0 2 * * *", name="nightly", args=[1])(tasks.add)
    backend.app.schedules.sync()
    tasks.divide.enqueue(1, 0)
    drain()
    tasks.add_on_the_loop.enqueue(1)

    said = status()

    assert "TASKS['default']" in said
    assert "0 live" in said
    assert "mail: 1 ready, 0 waiting, 0 running" in said
    assert "dead       1 dead letter\n" in said
    assert "nightly: active, next" in said
    assert "UTC (At 02:00 every day)\n" in said
    with backend.app.worker():
        assert "1 live" in status()


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "arguments",
    [
        ["status", "--settings=shop.settings"],
        ["--settings", "shop.settings", "status"],
        ["--backend", "default", "status", "--pythonpath", "."],
    ],
)
def test_common_options_may_appear_anywhere_on_the_command_line(backend, arguments):
    out = StringIO()

    # Django has parsed the options before it calls a command.
    Command(stdout=out).run_from_argv(["manage.py", "duly", *arguments])

    assert "TASKS['default']" in out.getvalue()


@pytest.mark.stores("sqlite-wal")
def test_the_backend_option_needs_a_name(backend):
    with pytest.raises(CommandError, match="--backend"):
        call_command("duly", "--", "--backend")
