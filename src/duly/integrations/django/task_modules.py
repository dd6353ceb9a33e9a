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
"""Errors that a module with a wrong task definition raises on import."""


def discover_tasks() -> None:
    """Import `tasks.py` of every installed application."""
    autodiscover_modules("tasks")


def load_tasks() -> None:
    """Import the task modules, and the views with everything they import."""
    if not apps.ready:
        django.setup()
    discover_tasks()
    if getattr(settings, "ROOT_URLCONF", None):
        # Web servers know tasks that are defined next to views, so workers must import views too.
        import_module(settings.ROOT_URLCONF)
