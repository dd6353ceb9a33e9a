"""Settings for the tests of django-tasks-db, whose source distribution has none."""

import os

SECRET_KEY = "of tests"  # noqa: S105 - guards nothing
USE_TZ = True
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
INSTALLED_APPS = [
    *(
        f"django.contrib.{name}"
        for name in ("admin", "auth", "contenttypes", "messages", "sessions")
    ),
    "duly.integrations.django",
    "db_worker_app",
    "tests",
]
_PROCESSORS = (
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
    "django.contrib.messages.context_processors.messages",
)
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": _PROCESSORS},
    }
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
_FILE = os.path.join(os.environ["UPSTREAM_FOLDER"], "tasks.db")  # noqa: PTH118
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _FILE,
        "TEST": {"NAME": f"{_FILE}.test"},
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 10},
    }
}
TASKS = {
    "default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default", "queue-1"]}
}
