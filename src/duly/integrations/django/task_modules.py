"""Imports the modules of a project that define tasks."""

from importlib import import_module

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from duly.errors import BadOption
from duly.integrations.django.tasks_api import InvalidTask

DEFINITION_ERRORS = (BadOption, InvalidTask, ImproperlyConfigured)
"""What a module that defines tasks wrongly raises."""


def discover_tasks() -> None:
    """Import `tasks.py` of every installed application."""
    autodiscover_modules("tasks")


def load_tasks() -> None:
    """Import those, and the views with all they import."""
    if not apps.ready:
        django.setup()
    discover_tasks()
    if getattr(settings, "ROOT_URLCONF", None):
        # Tasks that are defined beside views are known to who serves those.
        import_module(settings.ROOT_URLCONF)
