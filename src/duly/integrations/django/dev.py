"""`manage.py duly dev`: workers that restart when the code changes, as `runserver` does."""

import atexit
import sys
import threading

from django.utils import autoreload

from duly.integrations.django.project import apps_of_project, register_project_tasks

_GRACE_SECONDS = 5.0


def run() -> None:
    """Run workers until Ctrl-C, in a new process whenever the code changes."""
    autoreload.run_with_reloader(_work)


def _work() -> None:
    register_project_tasks()
    names = []
    for name, app in apps_of_project().items():
        worker = app.worker().start()
        # Django ends this process abruptly. Running tasks get some time and are then released.
        atexit.register(worker.stop, grace=_GRACE_SECONDS)
        names.append(name)
    sys.stdout.write(f"Running the tasks of {', '.join(names)}; restarts when the code changes.\n")
    sys.stdout.flush()
    threading.Event().wait()
