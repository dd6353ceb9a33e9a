"""Model fields for columns whose type differs between the databases."""

from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from duly.core.instants import moment


class InstantField(models.Field):
    """An instant: microseconds on SQLite, a timestamp on PostgreSQL."""

    def get_internal_type(self) -> str:
        """Return a type for which Django converts nothing."""
        return "BigIntegerField"

    def from_db_value(self, value: Any, *_place: Any) -> datetime | None:  # noqa: ANN401 - Django's
        """Return a datetime as Django's own fields do."""
        if value is None:
            return None
        found = moment(value) if isinstance(value, int) else value
        return found if settings.USE_TZ else timezone.make_naive(found)


class RunIdField(models.UUIDField):
    """A UUID. SQLite stores it as text with dashes, and Django's own field would omit them."""

    def get_db_prep_value(
        self,
        value: Any,  # noqa: ANN401 - Django's
        connection: Any,  # noqa: ANN401, ARG002 - Django's name
        prepared: bool = False,  # noqa: FBT001, FBT002 - Django also passes it by position
    ) -> Any:  # noqa: ANN401 - Django's
        """Return a value that both databases can compare with their column."""
        found = value if prepared else self.to_python(value)
        return None if found is None else str(found)
