"""`manage.py duly dev`: workers that begin anew when the code changes, as `runserver` does."""

import atexit
import sys
import threading

from django.utils import autoreload

from duly.integrations.django.project import apps_of_project, register_project_tasks

_GRACE_SECONDS = 5.0


def run() -> None:
    """Work until Ctrl-C, each time the code changes in a new process."""
    autoreload.run_with_reloader(_work)


def _work() -> None:
    register_project_tasks()
    names = []
    for name, app in apps_of_project().items():
        worker = app.worker().start()
        # Django ends this process where it stands; what runs is given time and then handed back.
        atexit.register(worker.stop, grace=_GRACE_SECONDS)
        names.append(name)
    sys.stdout.write(f"Running the tasks of {', '.join(names)}; restarts when the code changes.\n")
    sys.stdout.flush()
    threading.Event().wait()
