"""Writes the dead letters of Celery tasks that cannot be completed."""

import json
import sys
import time
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from duly.clock import monotonic, new_id
from duly.core.payload import CallCodec
from duly.errors import OUTAGES, BadArguments, DulyError, PayloadError, StoreError
from duly.guard.claim import GuardClaim
from duly.guard.dead_letters import DeadLetterDraft
from duly.integrations.celery.app import ENGINE, name_of
from duly.limits import DEAD_LETTER_WRITE_SECONDS
from duly.observe.logs import log_lost_dead_letter
from duly.worker.attempt import error_text, fingerprint

if TYPE_CHECKING:
    from duly.integrations.celery.task import IdempotentTask

_RETRY_SECONDS = 0.25


class WorkerLostTooOften(DulyError):
    """The processes that ran a task died too often. The task is kept as a dead letter."""

    def __init__(self, task: str, losses: int) -> None:
        super().__init__(
            f"{task} was not run: {losses} processes died or froze while they ran it with these "
            "arguments; it is now a dead letter: retry it when the cause is fixed"
        )


class DeadLettered(DulyError):
    """A task gave up and stored itself as a dead letter."""

    def __init__(self, task: str, letter_id: str) -> None:
        super().__init__(f"{task} sent itself to the dead letters, as dead letter {letter_id}")
        self.letter_id = letter_id


@dataclass(slots=True)
class GuardedExecution:
    """One execution of a task in this process, and its state so far."""

    task: "IdempotentTask"
    key: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    claim: GuardClaim | None = None
    """None until the key is acquired."""
    is_retried: bool = False
    has_returned: bool = False
    dead_letter_id: str | None = None
    """The id of the dead letter that this body has become."""
    next_dead_letter_id: str = field(default_factory=new_id)
    """The id for the dead letter that this body may become.

    It is stored only once, even if `send_to_dlq` is called repeatedly.
    """


current_execution: ContextVar[GuardedExecution | None] = ContextVar(
    "duly_celery_executing", default=None
)


def send_to_dlq(payload: object = None) -> str:  # noqa: ARG001 - the message itself is kept whole
    """Keep the message of the running task as a dead letter. Return the id of the dead letter.

    Call it where the task gives up, such as in an `except` block: the exception is kept too. The
    task then ends as failed and its key stays free, so a replay of the dead letter really runs the
    task. `payload` may be passed to document the call. duly always stores the arguments of the
    task.
    """
    execution = current_execution.get()
    if execution is None:
        raise DulyError("send_to_dlq() works only inside a task of duly.integrations.celery")
    if execution.dead_letter_id is None:
        execution.dead_letter_id = write_dead_letter_of(execution, "sent", sys.exception())
    return execution.dead_letter_id


def write_dead_letter_of(
    execution: GuardedExecution, cause: str, error: BaseException | None, *, began: bool = True
) -> str:
    """Write the dead letter of a body that failed, or that was not started or not retried."""
    claim = execution.claim
    attempts = 1 if claim is None else claim.attempts if began else claim.attempts - 1
    return write_dead_letter(
        execution.task,
        execution.args,
        execution.kwargs,
        cause=cause,
        error=error,
        key=execution.key,
        attempts=attempts,
        letter_id=execution.next_dead_letter_id,
    )


def write_dead_letter(
    task: "IdempotentTask",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    cause: str,
    error: BaseException | None,
    key: str | None,
    attempts: int,
    letter_id: str | None = None,
) -> str:
    """Write a dead letter with everything needed to send its message again."""
    draft = _draft(task, args, kwargs, cause=cause, error=error, key=key, attempts=attempts)
    return task.used_guard.letters.put(draft, letter_id)


def write_timeout_dead_letter(
    task: "IdempotentTask", args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> None:
    """Write the dead letter of a task that is being killed, for as long as the worker can wait.

    The broker will not deliver the message again. If the dead letter cannot be written, log it
    without its secrets.
    """
    guard, letter_id = task.used_guard, new_id()
    key = task.key_for(args, kwargs)
    draft = _draft(task, args, kwargs, cause="timeout", error=error, key=key, attempts=1)
    until = monotonic() + DEAD_LETTER_WRITE_SECONDS
    while True:
        try:
            found = guard.look(key)
            attempts = 1 if found is None else found.attempts
            guard.letters.put(draft._replace(attempts=attempts), letter_id)
        except StoreError as failure:
            if isinstance(failure, OUTAGES) and monotonic() < until:
                time.sleep(_RETRY_SECONDS)
                continue
            shown = draft._replace(arguments=task.codec.redacted(draft.arguments))
            has_secrets = shown.arguments != draft.arguments
            # The key is a hash of the arguments, so it could be used to verify a guessed secret.
            shown = shown._replace(key=None) if has_secrets else draft
            log_lost_dead_letter(task.name, repr(shown), failure, has_secrets=has_secrets)
        return


def _draft(
    task: "IdempotentTask",
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    cause: str,
    error: BaseException | None,
    key: str | None,
    attempts: int,
) -> DeadLetterDraft:
    route = task.request.delivery_info or {}
    arguments = _arguments(task.codec, args, kwargs)
    redact = partial(task.codec.redacted_text, arguments=arguments)
    text = None if error is None else error_text(error, redact)
    options = {
        name: route[name] for name in ("exchange", "routing_key", "priority") if route.get(name)
    }
    return DeadLetterDraft(
        engine=ENGINE,
        task=task.name,
        arguments=arguments,
        cause=cause,
        error="" if text is None else str(text),
        traceback=None if text is None else text.traceback,
        attempts=attempts,
        key=key,
        queue=route.get("routing_key"),
        options=json.dumps(options),
        application=name_of(task.app),
        fingerprint=fingerprint(cause, "") if text is None else text.fingerprint,
    )


def _arguments(codec: CallCodec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    try:
        return codec.encode(args, kwargs)
    except (BadArguments, PayloadError) as error:
        # A dead letter that cannot be replayed is better than no dead letter.
        return json.dumps({"lost": str(error), "shown": repr((args, kwargs))[:4096]})
