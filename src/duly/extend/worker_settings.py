"""Checks the settings of a worker before the worker is made."""

from typing import Any

from duly.app import Duly
from duly.settings import worker_settings


def check_worker_settings(app: Duly, **settings: Any) -> None:  # noqa: ANN401 - of many types
    """Raise BadOption for settings that `app.worker(**settings)` would refuse.

    The database is not opened. So a program can refuse wrong settings when they are written, not
    only when its worker starts.
    """
    worker_settings(app.settings.worker(), **settings)
