"""One attempt: from a claim to an outcome. The only code that calls a user's function."""

import asyncio
import hashlib
import math
import re
import traceback
from collections.abc import Callable, Iterator
from itertools import dropwhile
from typing import Any

from duly import faultpoints
from duly.context import CONNECTION, current_claim, leaving_error
from duly.core.outcome import (
    Cancelled,
    ErrorText,
    HandedBack,
    Outage,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Suspended,
    TimedOut,
    Vanished,
)
from duly.core.record import Claim
from duly.core.redaction import TextRedactor
from duly.errors import (
    AttemptTimedOut,
    BadOption,
    CancelRequested,
    Discard,
    PayloadError,
    RetryAfter,
    Snooze,
    StepNotKept,
    StoreError,
)
from duly.limits import DELAY_SECONDS, ERROR_CHARACTERS, TRACEBACK_CHARACTERS
from duly.open_steps import StepVanished, Suspend
from duly.registry import Definition, main_module_name
from duly.store.outage_wait import is_outage


def admission_refusal(definition: Definition, claim: Claim) -> Outcome | None:
    """Return how a run ends that its task does not let begin; None if it may begin."""
    if definition.admit is None:
        return None
    try:
        return definition.admit(claim)
    except StoreError:
        return HandedBack()  # Nobody can tell just now.
    except Exception as error:  # noqa: BLE001 - as of a body: no such code may end the worker
        return outcome_of(error, definition, claim.arguments)


def call_body(definition: Definition, arguments: str) -> Outcome:
    """Run a plain function in this thread and say how it ended."""
    claim = None if definition.tracing is None else current_claim()
    if definition.tracing is None or claim is None:
        return _call_body(definition, arguments)
    with definition.tracing.attempt_span(claim) as record_outcome:
        outcome = _call_body(definition, arguments)
        record_outcome(outcome)
        return outcome


def _call_body(definition: Definition, arguments: str) -> Outcome:
    try:
        args, kwargs = definition.codec.decode(arguments)
    except BaseException as error:  # noqa: BLE001 - classes of the user's own are built there
        return _undecodable(error, definition, arguments)
    if definition.connection is not None:
        kwargs[definition.connection] = CONNECTION
    try:
        faultpoints.hit("attempt.before_body")
        value = definition.function(*args, **kwargs)
        faultpoints.hit("attempt.after_body")
    except faultpoints.SimulatedCrash:
        raise
    except BaseException as error:  # noqa: BLE001 - every way a body can end is an outcome
        return outcome_of(error, definition, arguments)
    return encode_result(value, definition, arguments)


async def await_body(definition: Definition, arguments: str) -> Outcome:
    """Run a coroutine function on this loop and say how it ended."""
    loop = asyncio.get_running_loop()
    claim = None if definition.tracing is None else current_claim()
    if definition.tracing is None or claim is None:
        return await await_untraced(definition, arguments, loop)
    with definition.tracing.attempt_span(claim) as record_outcome:
        outcome = await await_untraced(definition, arguments, loop)
        record_outcome(outcome)
        return outcome


async def await_untraced(
    definition: Definition, arguments: str, loop: asyncio.AbstractEventLoop
) -> Outcome:
    """Run a coroutine function on the loop that the caller is on, with nothing around it."""
    try:
        args, kwargs = definition.codec.decode(arguments)
    except BaseException as error:  # noqa: BLE001 - classes of the user's own are built there
        return _undecodable(error, definition, arguments)
    limit: asyncio.Timeout | None = None
    try:
        faultpoints.hit("attempt.before_body")
        if definition.timeout is None:
            value = await definition.function(*args, **kwargs)
        else:
            limit = asyncio.timeout(definition.timeout)
            async with limit:
                value = await definition.function(*args, **kwargs)
        faultpoints.hit("attempt.after_body")
    except faultpoints.SimulatedCrash:
        raise
    except TimeoutError as error:
        expired = limit is not None and limit.expired()
        return timeout_outcome(definition) if expired else outcome_of(error, definition, arguments)
    except GeneratorExit as error:
        if not loop.is_running():
            raise  # It did not end: its loop did, and the coroutine left there is removed.
        return outcome_of(error, definition, arguments)
    except BaseException as error:  # noqa: BLE001 - every way a body can end is an outcome
        return outcome_of(error, definition, arguments)
    return encode_result(value, definition, arguments)


def check_arguments(definition: Definition, arguments: str) -> Outcome | None:
    """Return how an attempt ends whose arguments cannot be read; None if they can."""
    try:
        definition.codec.decode(arguments)
    except BaseException as error:  # noqa: BLE001 - classes of the user's own are built there
        return _undecodable(error, definition, arguments)
    return None


def _undecodable(error: BaseException, definition: Definition, arguments: str) -> Outcome:
    """A payload that cannot be read fails the run, whatever its retries."""
    if not isinstance(error, PayloadError):
        return outcome_of(error, definition, arguments)
    text = error_text(error, _redactor_for(definition, arguments))
    return Raised(text, retryable=False, cause="undecodable")


def encode_result(value: Any, definition: Definition, arguments: str) -> Outcome:  # noqa: ANN401 - the user's value
    """Encode what the body returned; a value that cannot be stored fails the run."""
    left = leaving_error()
    if left is not None:
        return swallowed_exit_outcome(left)
    if value is None:
        return _RETURNED_NONE
    try:
        return Returned(definition.codec.encode_result(value))
    except Exception as error:  # noqa: BLE001 - code of the value's own class runs there
        text = error_text(error, _redactor_for(definition, arguments))
        return Raised(text, retryable=False, cause="unencodable_result")


_RETURNED_NONE = Returned(None)


def swallowed_exit_outcome(left: Suspend | StepVanished) -> Outcome:
    """Say how a body ended that caught what was to leave it: not well, whatever it returned."""
    if isinstance(left, StepVanished):
        return Vanished(left.step)
    wrong = BadOption(
        f"the task caught the exception that suspends it at step {left.step!r}: let that exception "
        "leave the task, past `except BaseException`, `except:`, a `return` in `finally`, and "
        "asyncio.gather(…, return_exceptions=True)"
    )
    return Raised(error_text(wrong), retryable=False)


def timeout_outcome(definition: Definition) -> TimedOut:
    """Word a timeout."""
    message = f"the attempt took longer than its timeout of {definition.timeout} s"
    return TimedOut(ErrorText("TimeoutError", message, "", fingerprint("TimeoutError", "")))


def outcome_of(error: BaseException, definition: Definition, arguments: str) -> Outcome:
    """Map what a body raised to how its attempt ended, without the secrets of its arguments."""
    redact = _redactor_for(definition, arguments)
    try:
        return _outcome_of(error, definition, redact)
    except Exception as broken:  # noqa: BLE001 - the class of a user's exception may be broken itself
        return Raised(error_text(broken, redact), retryable=True)


def _redactor_for(definition: Definition, arguments: str) -> TextRedactor:
    return lambda text: definition.codec.redacted_text(text, arguments)


def _outcome_of(error: BaseException, definition: Definition, redact: TextRedactor) -> Outcome:
    match error:
        case Snooze(seconds=seconds) if not _is_pause(seconds):
            return _refused("Snooze", seconds)
        case RetryAfter(seconds=seconds) if not _is_pause(seconds, least=-math.inf):
            return _refused("RetryAfter", seconds)
        case Snooze(seconds=seconds):
            return Snoozed(float(seconds))
        case Discard(reason=reason):
            text = _safe_text(lambda: redact(str(reason or "")), "(it cannot be shown)")
            return Cancelled("discarded", text[:ERROR_CHARACTERS] or "discarded by its task")
        case RetryAfter(seconds=seconds):
            # An instant in the past, such as the date of an HTTP answer, has come.
            after = max(0.0, float(seconds))
            return Raised(error_text(error, redact), retryable=True, named=True, after=after)
        case Suspend(step=step, after=after):
            return Suspended(after, step)
        case StepVanished(step=step):
            return Vanished(step)
        case CancelRequested() | asyncio.CancelledError():
            return Cancelled("requested")
        case AttemptTimedOut():
            return timeout_outcome(definition)
        case StepNotKept():
            return Raised(error_text(error, redact), retryable=False, cause="unencodable_result")
        case BaseExceptionGroup() if (said := _control_error_in(error)) is not None:
            return _outcome_of(said, definition, redact)
        case _ if is_outage(error):
            return Outage(error_text(error, redact))
        case _:
            return _raised(error, definition, redact)


def _control_error_in(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """Return what a body says to us out of a TaskGroup; None if it has simply failed."""
    leaves = list(_leaf_exceptions(group))
    for final in (StepVanished, StepNotKept):
        for leaf in leaves:
            if isinstance(leaf, final):
                return leaf
    waits = [leaf for leaf in leaves if isinstance(leaf, Suspend)]
    if len(waits) == len(leaves):
        return min(waits, key=lambda wait: wait.after)
    if all(map(is_outage, leaves)):
        return leaves[0]
    is_word = isinstance(leaves[0], Snooze | RetryAfter | Discard | CancelRequested)
    return leaves[0] if is_word and len(leaves) == 1 else None


def _leaf_exceptions(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaf_exceptions(error)
        else:
            yield error


def _is_pause(seconds: object, least: float = 0.0) -> bool:
    # So worded, NaN is refused too: it compares with nothing.
    return isinstance(seconds, int | float) and least <= seconds <= DELAY_SECONDS


def _refused(kind: str, seconds: object) -> Raised:
    wrong = BadOption(f"{kind} must be from 0 to {DELAY_SECONDS} seconds, not {seconds!r}")
    return Raised(error_text(wrong), retryable=False)


def _raised(error: BaseException, definition: Definition, redact: TextRedactor) -> Raised:
    retry = definition.retry
    named = isinstance(error, retry.on)
    given_up = isinstance(error, retry.give_up_on)
    # SystemExit or KeyboardInterrupt out of a body is a failure like any other: a task must not
    # be able to end its worker.
    retryable = not given_up and (named or not retry.on)
    return Raised(error_text(error, redact), retryable=retryable, named=named)


def error_text(error: BaseException, redact: TextRedactor = str) -> ErrorText:
    """Keep an exception as text, bounded, with a fingerprint that groups one bug's failures.

    Secrets are redacted before the text is cut: a part of one would not be found.
    """
    kind = type(error).__qualname__
    module = _imported_as(type(error).__module__)
    if module != "builtins":
        kind = f"{module}.{kind}"
    kind = storable_text(kind)
    message = _safe_text(lambda: redact(str(error)), "(its message cannot be shown)")[
        :ERROR_CHARACTERS
    ]
    trace = _safe_text(lambda: redact(_trace_of(error)), "(its traceback cannot be shown)")
    if len(trace) > TRACEBACK_CHARACTERS:
        half = TRACEBACK_CHARACTERS // 2
        trace = f"{trace[:half]}\n… {len(trace) - 2 * half} characters omitted …\n{trace[-half:]}"
    return ErrorText(kind, message, trace, fingerprint(kind, _place_of(error)))


def _safe_text(show: Callable[[], str], otherwise: str) -> str:
    """Return a text of a user's exception as a database takes it, whatever its class does."""
    try:
        return storable_text(show())
    except Exception:  # noqa: BLE001 - as it says
        return otherwise


def _trace_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a SyntaxError's line, of a template engine say, may be no text
        return "".join(traceback.format_tb(error.__traceback__))


def fingerprint(kind: str, place: str) -> str:
    """Return a short text that is equal for failures of one kind at one place."""
    return hashlib.sha256(storable_text(f"{kind}\n{place}").encode()).hexdigest()[:16]


_SURROGATES = re.compile("[\ud800-\udfff\x00]")


def storable_text(text: str) -> str:
    """Replace what a database refuses in a text."""
    return _SURROGATES.sub("\ufffd", text)


def _place_of(error: BaseException) -> str:
    """Name the functions that the error came through last.

    Not their files, which lie elsewhere on another host, nor lines, which move with every edit.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    places = [
        (_imported_as(str(frame.f_globals.get("__name__"))), frame.f_code.co_qualname)
        for frame in frames
    ]
    # Which runner called the body is no part of the bug.
    theirs = list(dropwhile(lambda place: place[0].startswith("duly."), places))
    return "\n".join(f"{module}:{name}" for module, name in (theirs or places)[-3:])


def _imported_as(module: str) -> str:
    """Return the name of a module, also of the program's own, as other processes import it."""
    return (main_module_name() or module) if module == "__main__" else module
