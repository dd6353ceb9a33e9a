"""The module that worker processes import: `duly worker duly.integrations.django.worker:default`.

Its attributes are the aliases of TASKS, and the application that fires tasks of other backends.
"""

import django

from duly import Duly


def _ready() -> None:
    from duly.integrations.django.child_environment import use_test_databases  # noqa: PLC0415 - as below

    use_test_databases()
    django.setup()
    from duly.integrations.django.app import DjangoDuly, scheduler_app  # noqa: PLC0415 - reads settings
    from duly.integrations.django.backend import backends  # noqa: PLC0415 - as above
    from duly.integrations.django.project import register_project_tasks  # noqa: PLC0415 - as above

    # Includes tasks without a schedule in code: a user may schedule them in the admin.
    register_project_tasks()
    apps: list[Duly] = [scheduler_app()]
    for backend in backends():
        backend.tell_ends()
        apps.append(backend.app)
    for app in apps:
        # Tests may call a command that only reads.
        if isinstance(app, DjangoDuly) and not app.is_only_connection():
            app.runs_tasks = True


_ready()


def __getattr__(alias: str) -> Duly:
    if alias.startswith("__"):
        raise AttributeError(alias)
    if alias == "scheduler_app":
        from duly.integrations.django.app import scheduler_app  # noqa: PLC0415 - as above

        return scheduler_app()
    from duly.integrations.django.backend import backend_of  # noqa: PLC0415 - as above

    return backend_of(alias).app
