"""Columns of duly's tables, called as Django calls fields."""

from uuid import UUID

import pytest
from django.db import connection

from duly.integrations.django.fields import RunIdField

ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.mark.parametrize("value", [ID, str(ID), ID.hex])
@pytest.mark.stores("sqlite-wal")
def test_a_run_id_is_prepared_however_django_asks_for_it(backend, value):
    field = RunIdField()

    asked = [
        field.get_db_prep_save(value, connection=connection),
        field.get_db_prep_value(value, connection=connection, prepared=False),
        field.get_db_prep_value(value, connection, False),
    ]

    assert asked == [str(ID)] * 3
