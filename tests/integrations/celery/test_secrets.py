"""Secret arguments of Celery tasks appear neither in the log nor in the errors of dead letters."""

from contextlib import closing
from typing import Any

import celery
import pytest
from celery.exceptions import TimeLimitExceeded

from duly.guard import Guard
from duly.guard.dead_letters import DeadLetterDraft
from duly.integrations.celery import IdempotentTask, dead_letters
from duly.integrations.celery.dead_letters import write_timeout_dead_letter
from tests.integrations.canaries import CANARY, HARMLESS

NOWHERE = "redis://127.0.0.1:1/0"


def task_of(guard: Guard, **options: Any) -> Any:
    """Return a task that raises the given error."""

    def pay(note: str, card: str, details: dict[str, Any]) -> None:
        raise ValueError(f"{note}: {card} of {details}")

    app = celery.Celery("shop", broker="memory://", backend="cache+memory://")
    return app.task(pay, base=IdempotentTask, name="pay", guard=guard, shared=False, **options)


def logged_dead_letter(caplog, *args: Any, **options: Any) -> str:
    task = task_of(Guard(NOWHERE), **options)
    write_timeout_dead_letter(task, args, {}, TimeLimitExceeded(1))
    (line,) = caplog.records
    assert line.levelname == "CRITICAL"
    return line.getMessage()


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch):
    monkeypatch.setattr(dead_letters, "DEAD_LETTER_WRITE_SECONDS", 0.0)


def test_a_dead_letter_that_cannot_be_written_is_logged_without_secrets(caplog):
    said = logged_dead_letter(caplog, HARMLESS, CANARY, {"password": CANARY}, redact=("card",))

    assert CANARY not in said
    assert HARMLESS in said
    assert "replace ***" in said
    call = said.partition("guard.letters.put(")[2].removesuffix(")")
    draft = eval(call, {"DeadLetterDraft": DeadLetterDraft})  # noqa: S307 -as by hand
    assert draft.key is None, "its fingerprint would tell whether a guess is right"


def test_arguments_that_cannot_be_stored_are_not_logged(caplog):
    said = logged_dead_letter(caplog, HARMLESS, object(), {"password": CANARY}, keys=["note"])

    assert CANARY not in said


def test_the_error_of_a_dead_letter_has_no_redacted_value(tmp_path):
    with closing(Guard(f"sqlite:///{tmp_path / 'guard.db'}")) as guard:
        task_of(guard, redact=("card",)).apply((HARMLESS, CANARY, {"api_key": CANARY}))

        (letter,) = guard.letters.list()

    assert CANARY in letter.arguments, "the dead letter can be replayed"
    assert HARMLESS in letter.error
    assert CANARY not in f"{letter.error}{letter.traceback}"
