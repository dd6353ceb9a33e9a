"""The Celery application, and the guard that belongs to it."""

import threading
from typing import Any

import celery

from duly.errors import BadOption, TaskNotRegistered
from duly.guard import Guard
from duly.store.guard_ops import Letter

ENGINE = "celery"

_ATTRIBUTE = "duly_guard"
_turn = threading.Lock()


class Celery(celery.Celery):
    """Celery whose tasks are idempotent unless they say otherwise.

    `guard` is a Guard or the address of its ledger; without it, as `duly_guard` in the
    configuration, else DULY_URL, else sqlite:///duly.db.
    """

    task_cls = "duly.integrations.celery.task:IdempotentTask"

    def __init__(self, *args: Any, guard: Guard | str | None = None, **options: Any) -> None:  # noqa: ANN401 - Celery's own
        super().__init__(*args, **options)
        if guard is not None:
            use_guard(self, guard)


def use_guard(app: celery.Celery, guard: Guard | str) -> Guard:
    """Let an application's tasks be guarded by this guard, and its letters be replayed."""
    if isinstance(guard, str):
        guard = Guard(guard)
    if not isinstance(guard, Guard):
        raise BadOption(f"guard must be a Guard or an address, not {guard!r}")
    setattr(app, _ATTRIBUTE, guard)
    send_letters_of(guard, app)
    return guard


def send_letters_of(guard: Guard, app: celery.Celery) -> None:
    """Say whose application the letters of a guard are replayed by."""
    guard.letters.send_with(ENGINE, lambda letter: _send_again(app, letter))


def guard_of(app: celery.Celery) -> Guard:
    """Return the guard of an application, by default that of `duly_guard` in its configuration."""
    found: Guard | None = vars(app).get(_ATTRIBUTE)
    if found is None:
        with _turn:
            found = vars(app).get(_ATTRIBUTE)
            if found is None:
                configured = app.conf.get("duly_guard")
                found = use_guard(app, Guard() if configured is None else configured)
    return found


def _send_again(app: celery.Celery, letter: Letter) -> None:
    app.finalize()
    task = app.tasks.get(letter.task)
    if task is None:
        app.loader.import_default_modules()
        task = app.tasks.get(letter.task)
    if task is None:
        raise TaskNotRegistered(letter.task)
    if not hasattr(task, "replay"):
        raise BadOption(
            f"{letter.task} is no IdempotentTask any more, so letter {letter.id} cannot be replayed"
        )
    task.replay(letter)
