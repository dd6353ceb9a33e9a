"""What worker processes import: `duly worker duly.integrations.django.worker:default`.

Its attributes are the aliases of TASKS, and the application that fires what others carry.
"""

import django

from duly.app import Duly


def _ready() -> None:
    django.setup()
    from duly.integrations.django.app import (  # noqa: PLC0415 - reads settings
        DjangoDuly,
        scheduler_app,
    )
    from duly.integrations.django.backend import backends  # noqa: PLC0415 - as above
    from duly.integrations.django.desk import meet_tasks  # noqa: PLC0415 - as above

    # Also those that no code schedules: somebody may, in the admin.
    meet_tasks()
    apps: list[Duly] = [scheduler_app()]
    for backend in backends():
        backend.tell_ends()
        apps.append(backend.app)
    for app in apps:
        if isinstance(app, DjangoDuly):
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
