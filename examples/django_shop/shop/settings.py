"""The settings: what is about duly is at the end."""

import os
from pathlib import Path
from urllib.parse import urlsplit

import django

HERE = Path(__file__).parents[1]
# SQLite in this folder, or wherever SHOP_DATABASE says: sqlite:////path or postgresql://…
DATABASE = urlsplit(os.environ.get("SHOP_DATABASE", f"sqlite:///{HERE / 'shop.db'}"))

if DATABASE.scheme == "sqlite":
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATABASE.path[1:],
            # So that a transaction that reads before it writes waits for its turn.
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": DATABASE.path[1:],
            "USER": DATABASE.username or "",
            "PASSWORD": DATABASE.password or "",
            "HOST": DATABASE.hostname or "",
            "PORT": DATABASE.port or "",
        }
    }

ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "shop.urls"
SECRET_KEY = os.environ.get("SECRET_KEY", "only for trying it out")
TIME_ZONE = "UTC"
USE_TZ = True

# Django's admin, for staff.
INSTALLED_APPS = [
    f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "messages", "sessions")
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"

INSTALLED_APPS += ["duly.integrations.django", "shop"]
DJANGO_TASKS = "django.tasks"
if django.VERSION < (6,):
    DJANGO_TASKS = "django_tasks"  # The backport of what Django 6 has itself.
    INSTALLED_APPS += [DJANGO_TASKS]
TASKS = {
    "default": {"BACKEND": "duly.integrations.django.DulyBackend"},
    # Runs what it is given at once, where it is given it.
    "here": {"BACKEND": f"{DJANGO_TASKS}.backends.immediate.ImmediateBackend"},
}
BILLING_CRON = os.environ.get("SHOP_BILLING", "0 2 * * *")
BILLING_BACKEND = os.environ.get("SHOP_BILLING_BACKEND", "default")

if "SHOP_REDIS" in os.environ:
    # RQ carries the billing; every web process and every `manage.py run_scheduler` may fire it.
    INSTALLED_APPS += ["django_rq"]
    RQ_QUEUES = {"default": {"URL": os.environ["SHOP_REDIS"]}}
    TASKS["rq"] = {"BACKEND": "django_tasks_rq.RQBackend", "QUEUES": ["default"]}
    BILLING_BACKEND = "rq"
    PERIODIC_TASKS_AUTOSTART = True
