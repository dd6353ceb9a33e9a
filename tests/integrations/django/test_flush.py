"""`manage.py flush` empties duly's tables."""

import pytest
from django.core.management import call_command
from django.db import connection

from duly.integrations.django.management.commands.flush import EMPTIED, KEPT
from tests.integrations.django import tasks


def test_every_table_of_duly_is_emptied_or_kept_on_purpose(backend):
    found = {name for name in connection.introspection.table_names() if name.startswith("duly_")}

    assert found <= {*EMPTIED, *KEPT}


def test_a_flush_removes_runs_and_schedules_and_keeps_the_counts_consistent(backend):
    tasks.add.enqueue(1)
    backend.app.schedules.sync()

    call_command("flush", interactive=False, verbosity=0, inhibit_post_migrate=True)

    assert backend.app.runs.list() == []
    tasks.add.enqueue(2)
    assert list(backend.app.store.audit(1)) == []
    assert len(backend.app.runs.list()) == 1


@pytest.mark.stores("sqlite-wal")
def test_nothing_is_emptied_unless_it_is_confirmed(backend, monkeypatch):
    tasks.add.enqueue(1)
    monkeypatch.setattr("builtins.input", lambda _question: "no")

    call_command("flush", interactive=True, verbosity=0)

    assert len(backend.app.runs.list()) == 1
