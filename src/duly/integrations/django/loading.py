"""Imports the modules of a project that define tasks."""

from importlib import import_module

import django
from django.apps import apps
from django.conf import settings
from django.utils.module_loading import autodiscover_modules


def load_tasks() -> None:
    """Import `tasks.py` of every installed application, and the views with all they import."""
    if not apps.ready:
        django.setup()
    autodiscover_modules("tasks")
    if getattr(settings, "ROOT_URLCONF", None):
        # Tasks that are defined beside views are known to who serves those.
        import_module(settings.ROOT_URLCONF)
