"""The Celery application and its guard."""

import threading
from dataclasses import dataclass
from typing import Any

import celery

from duly.errors import BadOption, DulyError
from duly.guard import Guard
from duly.integrations.celery.ledger import guard_on_broker
from duly.registry import main_module_name
from duly.settings import load_settings
from duly.store.ops.guard import DeadLetterRecord

ENGINE = "celery"

_ATTRIBUTE = "duly_guard"
_SETTING = "duly_guard_database"
"""Celery hides settings with `database` in their names when it reports its configuration."""
_guard_lock = threading.Lock()


class TaskUnknown(DulyError):
    """The application of a dead letter does not have the task of that dead letter."""

    def __init__(self, letter: DeadLetterRecord) -> None:
        super().__init__(
            f"dead letter {letter.id} names task {letter.task!r}, which application "
            f"{letter.application!r} does not have; import the module that defines the task, for "
            "example with Celery(include=[…]), or give a task that name: @app.task(name=…)"
        )


class Celery(celery.Celery):
    """A Celery application whose tasks are idempotent unless they are declared otherwise.

    `guard` is a Guard or the address of its ledger. If it is not given, the guard uses the first of
    these that is set: `duly_guard_database` in the configuration, DULY_URL, or the broker if it is
    a Redis that does not evict keys. If none is usable, workers do not start.
    """

    task_cls = "duly.integrations.celery.task:IdempotentTask"

    def __init__(self, *args: Any, guard: Guard | str | None = None, **options: Any) -> None:  # noqa: ANN401 - Celery's own
        super().__init__(*args, **options)
        if guard is not None:
            use_guard(self, guard)


def use_guard(app: celery.Celery, guard: Guard | str) -> Guard:
    """Set the guard of an application's tasks, and let the application replay dead letters."""
    if isinstance(guard, str):
        guard = Guard(guard)
    if not isinstance(guard, Guard):
        raise BadOption(f"guard must be a Guard or an address, not a {type(guard).__name__}")
    setattr(app, _ATTRIBUTE, guard)
    attach_dead_letter_sender(guard, app)
    return guard


def attach_dead_letter_sender(guard: Guard, app: celery.Celery) -> None:
    """Register the application as the sender that replays the dead letters of its tasks."""
    guard.letters.send_with(ENGINE, _DeadLetterSender(app), application=name_of(app))


def name_of(app: celery.Celery) -> str:
    """Return the application's name, which its dead letters are stored under."""
    name: str | None = app.main
    # A worker imports the program that runs here as `__main__` under its module name.
    return (main_module_name() if name == "__main__" else name) or ""


def guard_of(app: celery.Celery) -> Guard:
    """Return the guard of an application. By default it uses `duly_guard_database`.

    If that setting is missing, the guard keeps its keys in the store at DULY_URL, or else in the
    broker's Redis. Raise LedgerNotConfigured if the broker is not a usable Redis.
    """
    found: Guard | None = vars(app).get(_ATTRIBUTE)
    if found is None:
        with _guard_lock:
            found = vars(app).get(_ATTRIBUTE)
            if found is None:
                found = use_guard(app, app.conf.get(_SETTING) or _default_guard(app))
    return found


def _default_guard(app: celery.Celery) -> Guard:
    # The default sqlite:///duly.db does not work here: each worker would have its own file in its
    # own folder.
    return Guard() if "url" in load_settings().origins else guard_on_broker(app)


@dataclass(frozen=True)
class _DeadLetterSender:
    """Sends the messages of dead letters again. Two senders of one application are equal."""

    app: celery.Celery

    def __call__(self, letter: DeadLetterRecord) -> None:
        app = self.app
        app.finalize()
        task = app.tasks.get(letter.task)
        if task is None:
            app.loader.import_default_modules()
            task = app.tasks.get(letter.task)
        if task is None:
            raise TaskUnknown(letter)
        if not hasattr(task, "replay"):
            raise BadOption(
                f"{letter.task} is not an IdempotentTask any more, so dead letter {letter.id} "
                "cannot be retried"
            )
        task.replay(letter)
