"""The steps that go on when their body has ended, so that its claim outlives all of it.

A body leaves them behind when one branch of `asyncio.gather` fails, or when it does not wait for
what it started. They end by themselves, unless the attempt is to end at once.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from duly.clock import monotonic
from duly.context import RunContext, check_awaited, end_body
from duly.core.outcome import Cancelled, Outcome, Returned, TimedOut
from duly.errors import StepNotAwaited
from duly.open_steps import OpenSteps
from duly.registry import Definition
from duly.worker.attempt import outcome_of, swallowed_exit_outcome, timeout_outcome


async def await_step_drain(
    steps: OpenSteps,
    context: RunContext,
    outcome: Outcome,
    definition: Definition,
    *,
    is_ended: bool = False,
) -> Outcome:
    """Wait for the steps of a body that has ended, and say how its attempt has.

    They are broken off by what ends bodies: a timeout, or a cancel, also one of before.
    """
    steps.forget_closed_loops()
    broken_by: Outcome | None = None
    if is_ended or type(outcome) is TimedOut:
        broken_by = Cancelled("requested")
        steps.cancel_all()
    else:
        _warn_of_open_steps(steps, context)
    while (ended := steps.next_end()) is not None:
        until = context.deadline if broken_by is None else None
        left = _seconds_until(until)
        try:
            done, _ = await asyncio.wait([ended], timeout=left)
        except asyncio.CancelledError:
            # Who asks for the end gets it, though not before threads have come to theirs.
            broken_by = Cancelled("requested")
        else:
            if done:
                continue
            broken_by = timeout_outcome(definition)
        steps.cancel_all()
    if type(outcome) is Returned and broken_by is not None:
        return broken_by
    return _final_outcome(context, outcome)


def wait_for_step_drain(
    context: RunContext, outcome: Outcome, definition: Definition, arguments: str
) -> Outcome:
    """Note that a plain function has ended, and say how its attempt has, as its thread.

    Loops that this thread has run stand still, and so do the steps there. What threads are in
    comes to its end, and what is on their loops is broken off by what has ended the body, or by
    the timeout.
    """
    steps = end_body(context)
    if steps is not None:
        steps.forget_this_thread()
        steps.forget_closed_loops()
        outcome = _wait_for(steps, context, outcome, definition)
    return check_steps(context, outcome, definition, arguments)


def check_steps(
    context: RunContext, outcome: Outcome, definition: Definition, arguments: str
) -> Outcome:
    """Fail an attempt whose body returned and forgot the `await` of a step.

    Warn of recorded steps that the body did not reach.
    """
    if type(outcome) is Returned:
        try:
            check_awaited(context)
        except StepNotAwaited as error:
            return outcome_of(error, definition, arguments)
        unused = context.unused_steps()
        if unused:
            _warn(context, "these recorded steps are no longer in the code", unused)
    return outcome


def _wait_for(
    steps: OpenSteps, context: RunContext, outcome: Outcome, definition: Definition
) -> Outcome:
    until = context.deadline
    if outcome == Cancelled("requested") or type(outcome) is TimedOut:
        steps.cancel_all()
        until = None
    else:
        _warn_of_open_steps(steps, context)
    if not steps.wait(partial(_seconds_until, until)):
        is_any_broken = steps.cancel_all()
        steps.wait()
        if is_any_broken and type(outcome) is Returned:
            return timeout_outcome(definition)
    return _final_outcome(context, outcome)


def _warn_of_open_steps(steps: OpenSteps, context: RunContext) -> None:
    names = steps.names()
    if names:
        about = (
            "the task returned while these steps are still running, and its attempt waits for them"
        )
        _warn(context, about, names)


def _warn(context: RunContext, about: str, steps: Iterable[str]) -> None:
    # A filter or handler of the application's may raise, and the body has ended.
    with suppress(Exception):
        context.log.warning("%s: %s", about, ", ".join(steps))


def _seconds_until(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - monotonic())


def _final_outcome(context: RunContext, outcome: Outcome) -> Outcome:
    """Say how a body ended in which a step that was left behind was to leave it."""
    if type(outcome) is Returned and context.leaving_error is not None:
        return swallowed_exit_outcome(context.leaving_error)
    return outcome
