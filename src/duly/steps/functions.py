"""Steps: parts of a task that run once, and waits that need no worker.

The result of a step is recorded under its name. An attempt that reaches the step again, after a
crash or a retry, gets the recorded result and continues. A task that sleeps, or waits for an event
or for child runs, leaves its worker. The run returns to the queue, and later starts again from the
top, skipping everything that is done.
"""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from duly.clock import MICROSECONDS
from duly.context import RunContext, current
from duly.core.amounts import microseconds
from duly.core.key import check_name
from duly.core.payload import decode_value
from duly.core.record import StepRecord
from duly.core.step_result import decode_returned, encode_returned
from duly.errors import BadOption, ClaimLost, DulyError
from duly.limits import DELAY_SECONDS
from duly.open_steps import StepVanished, Suspend
from duly.steps import children
from duly.steps.children import TaskCall
from duly.steps.concurrency import (
    must_be_awaited,
    open_task_step,
    open_thread_step,
    run_isolated,
    run_off_loop,
    run_to_completion,
    wait_for_open_steps,
)
from duly.store.ops.steps import BeginStep, EndStep, ForgetStep
from duly.store.outage_wait import is_outage

P = ParamSpec("P")
R = TypeVar("R")


class _EnclosingStep(NamedTuple):
    """The innermost step or gather that contains the code that is running."""

    name: str | None
    holds: str | None
    """The name of the enclosing step that must not start twice, if there is one."""


_NO_STEP = _EnclosingStep(None, None)
_enclosing: ContextVar[_EnclosingStep] = ContextVar("duly_outer_step", default=_NO_STEP)


def step(
    name: str,
    function: Callable[..., R],
    /,
    *args: Any,  # noqa: ANN401 - as the function takes them
    transaction: bool = False,
    on_crash: str = "rerun",
    **kwargs: Any,  # noqa: ANN401
) -> R:
    """Run a function once in the life of this run, and return its result.

    With `transaction`, everything it writes through `current().connection` commits together with
    the record of the step. With `on_crash="hold"` it never starts twice: if an attempt is lost
    during the step, the run ends `interrupted` and waits for a person.
    """
    if inspect.iscoroutinefunction(function):
        raise BadOption(f"step {name!r} is a coroutine function: use await astep(…), not step(…)")
    context = current()
    with open_thread_step(context, name):
        found = _Step(context, name, function, transaction=transaction, on_crash=on_crash)
        if found.begin():
            return found.result()  # type: ignore[no-any-return]
        with found:
            value = function(*args, **kwargs)
            found.end(value)
        return value


@must_be_awaited
async def astep(
    name: str,
    function: Callable[..., Awaitable[R] | R],
    /,
    *args: Any,  # noqa: ANN401 - as the function takes them
    transaction: bool = False,
    on_crash: str = "rerun",
    **kwargs: Any,  # noqa: ANN401
) -> R:
    """Run a `step` in an `async def` task. With `transaction`, a thread runs a plain function."""
    context = current()
    with open_task_step(context, name):
        try:
            return await _astep(context, name, function, args, kwargs, transaction, on_crash)
        except StepVanished:
            await wait_for_open_steps(context)
            raise


async def _astep(
    context: RunContext,
    name: str,
    function: Callable[..., Awaitable[R] | R],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    transaction: bool,  # noqa: FBT001
    on_crash: str,
) -> R:
    if transaction:
        if inspect.iscoroutinefunction(function):
            raise BadOption(
                f"step {name!r} has a transaction, which must stay in one thread: pass a plain "
                "function, which runs on its own thread, off the event loop"
            )
        act: Callable[[], Any] = partial(
            step, name, function, *args, transaction=True, on_crash=on_crash, **kwargs
        )
        is_joining = context.joined(context.store) is not None
        return act() if is_joining else await run_isolated(act)
    found = _Step(context, name, function, transaction=False, on_crash=on_crash)
    try:
        is_done = await run_off_loop(context, found.begin)
    except asyncio.CancelledError:
        with suppress(DulyError):  # Its record would look like a lost attempt.
            await run_off_loop(context, found.withdraw)
        raise
    if is_done:
        return found.result()  # type: ignore[no-any-return]
    with found:
        value = function(*args, **kwargs)
        result: R = await value if inspect.isawaitable(value) else value
        await run_off_loop(context, partial(found.end, result))
    return result


def sleep(name: str, seconds: float | timedelta) -> None:
    """Let the run sleep. It needs no worker meanwhile."""
    _wait(name, _await, name, "sleep", None, microseconds("a sleep", seconds))


@must_be_awaited
async def asleep(name: str, seconds: float | timedelta) -> None:
    """Let the run sleep, in an `async def` task; see `sleep`."""
    after = microseconds("a sleep", seconds)
    await _wait_async(name, _await, name, "sleep", None, after)


def wait_for(
    event: str, timeout: float | timedelta | None = None, *, name: str | None = None
) -> Any:  # noqa: ANN401 - what was sent
    """Wait for an event and return its payload. Raise TimeoutError if it does not come in time.

    The run needs no worker meanwhile. Pass a step `name` to wait for one event more than once.
    """
    return _wait(event, _wait_for_event, event, timeout, name)


@must_be_awaited
async def await_for(
    event: str,
    timeout: float | timedelta | None = None,  # noqa: ASYNC109 - kept by the store
    *,
    name: str | None = None,
) -> Any:  # noqa: ANN401 - what was sent
    """Wait for an event in an `async def` task; see `wait_for`."""
    return await _wait_async(event, _wait_for_event, event, timeout, name)


def gather(calls: Iterable[TaskCall], *, name: str = "gather") -> list[Any]:
    """Enqueue calls, wait until all have ended, and return their results in order.

    Raise RunFailed if one of them did not succeed. The run needs no worker meanwhile.
    """
    return _wait(name, _gather, calls, name)


@must_be_awaited
async def agather(calls: Iterable[TaskCall], *, name: str = "gather") -> list[Any]:
    """Enqueue calls and wait for them in an `async def` task; see `gather`."""
    return await _wait_async(name, _gather, calls, name)


def _wait(
    name: str, wait: Callable[Concatenate[RunContext, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Wait for something. Record it if the body must be left for that."""
    context = current()
    try:
        with open_thread_step(context, name):
            return wait(context, *args, **kwargs)
    except Suspend as left:
        raise context.leave(left) from None


async def _wait_async(
    name: str, wait: Callable[Concatenate[RunContext, P], R], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Wait as `_wait` does, but let other open steps of the body end first."""
    context = current()
    try:
        with open_task_step(context, name):
            return await run_to_completion(partial(wait, context, *args, **kwargs))
    except Suspend as left:
        await wait_for_open_steps(context)
        raise context.leave(left) from None


class _Step:
    """One step of this attempt."""

    def __init__(
        self,
        context: RunContext,
        name: str,
        function: Callable[..., Any],
        *,
        transaction: bool,
        on_crash: str,
    ) -> None:
        if on_crash not in {"rerun", "hold"}:
            raise BadOption(f'on_crash must be "rerun" or "hold", not {on_crash!r}')
        self._context = context
        self._name = context.use_step(check_name("step", name))
        self._function = function
        definition = context.definition_of(context.task)
        self._codec = None if definition is None else definition.codec
        self._outer = _enclosing.get()
        self._store = context.store
        self._transaction = transaction
        self._holds = on_crash == "hold"
        self._known: StepRecord | None = None
        self._has_begun = False
        self._has_returned = False

    def begin(self) -> bool:
        """Return whether the step is done. Record its start if it must not start twice."""
        self._known = self._context.steps().get(self._name)
        if self._known is not None:
            _check_kind(self._known, "step")
            if self._known.done:
                return True
            if self._holds:
                raise self._context.leave(StepVanished(self._name))
        self._context.joined(self._store)  # Raises if it cannot be recorded from this thread.
        if self._holds:
            self._context.refuse_in_transaction(f'step {self._name!r} with on_crash="hold"')
            _write(self._context, BeginStep(*self._place(), "step", self._outer.name))
            self._has_begun = True
        if self._transaction:
            # If a transaction is already open, the step joins it and does not end it.
            self._transaction = self._context.begin_transaction()
        return False

    def withdraw(self) -> None:
        """Remove the record of the start, because the function was never called."""
        if self._has_begun:
            _write(self._context, ForgetStep(*self._place()))

    def result(self) -> Any:  # noqa: ANN401 - what the function returned
        """Return the recorded result."""
        assert self._known is not None  # noqa: S101 - for the type checker
        return decode_returned(self._function, self._known.result, self._codec)

    def end(self, value: object) -> None:
        """Record the result."""
        self._has_returned = True
        in_transaction = self._context.joined(self._store) is not None
        text = encode_returned(
            self._name, self._function, value, self._codec, in_transaction=in_transaction
        )
        op = EndStep(*self._place(), text, self._outer.name)
        is_ours = self._context.record_step(op, commit=self._transaction)
        if is_ours is None:
            is_ours = self._store.do(op)
        if not is_ours:
            raise ClaimLost(f"run {op.run_id}", op.claim_number)

    def __enter__(self) -> None:
        holds = self._name if self._holds else self._outer.holds
        self._token = _enclosing.set(_EnclosingStep(self._name, holds))

    def __exit__(self, kind: object, error: BaseException | None, _traceback: object) -> None:
        with suppress(ValueError):  # Its context was replaced: the coroutine is being removed.
            _enclosing.reset(self._token)
        if error is None:
            return
        why = self._context.abandon_transaction(error) if self._transaction else error
        if isinstance(why, Exception):
            # Only completed steps are recorded, so this note is the only hint which step failed.
            with suppress(Exception):  # Its class may refuse it, as a frozen dataclass does.
                why.add_note(f'(in step "{self._name}")')
        # If the function itself raised, the step has failed and may start again. An interrupt from
        # outside does not show how far the step got. A step that has returned is complete.
        is_its_own = isinstance(error, Exception) and not isinstance(error, ClaimLost)
        is_its_own = is_its_own and not is_outage(why)
        if self._holds and is_its_own and not self._has_returned:
            _write(self._context, ForgetStep(*self._place()))
        if why is not error:
            raise why from error

    def _place(self) -> tuple[str, int, str]:
        return self._context.run_id, self._context.fence, self._name


def _wait_for_event(
    context: RunContext, event: str, timeout: float | timedelta | None, name: str | None
) -> Any:  # noqa: ANN401 - what was sent
    check_name("event", event)
    after = None if timeout is None else microseconds("timeout", timeout)
    found = _await(context, name or f"event:{event}", "wait", event, after)
    if found.result is None:
        raise TimeoutError(f"event {event!r} did not arrive in time")
    return decode_value(found.result)


def _gather(context: RunContext, calls: Iterable[TaskCall], name: str) -> list[Any]:
    check_name("step", name)
    known = context.steps().get(name)
    if known is None:
        context.refuse_in_transaction(f"step {name!r}, which waits for other runs,")
        _refuse_if_held(name)
        token = _enclosing.set(_EnclosingStep(name, None))
        try:
            awaited = json.dumps(children.enqueue_children(context, calls, name))
        finally:
            _enclosing.reset(token)
    else:
        _check_kind(known, "gather")
        awaited = known.awaited or "[]"
    found = _await(context, name, "gather", awaited, None)
    if found.result is not None:
        return decode_value(found.result)  # type: ignore[no-any-return]
    ends = [children.get_succeeded_child(context.store, child) for child in json.loads(awaited)]
    results = [children.decode_child_result(context, run) for run in ends]
    if not found.done:
        text = children.encode_child_results(context, ends, results)
        _write(context, EndStep(context.run_id, context.fence, name, text))
    return results


def _await(
    context: RunContext, name: str, kind: str, awaited: str | None, after: int | None
) -> StepRecord:
    """Return the result of a wait, or leave the body until there is one."""
    context.use_step(check_name("step", name))
    known = context.steps().get(name)
    if known is not None:
        _check_kind(known, kind)
        if known.done:
            return known
    _refuse_if_held(name)
    context.refuse_in_transaction(f"step {name!r}, which waits,")
    store = context.store
    op = BeginStep(context.run_id, context.fence, name, kind, awaited, after)
    found = store.do(op)
    if found is None:
        raise ClaimLost(f"run {context.run_id}", context.fence)
    is_ready = kind == "gather" and children.have_ended(store, json.loads(awaited or "[]"))
    if found.done or is_ready:
        return found
    left = DELAY_SECONDS if found.wake_at is None else (found.wake_at - store.now()) / MICROSECONDS
    raise Suspend(name, max(left, 0.001))


def _write(context: RunContext, op: BeginStep | EndStep | ForgetStep) -> None:
    answer = context.store.do(op)
    if not answer:
        raise ClaimLost(f"run {op.run_id}", op.claim_number)


def _refuse_if_held(name: str) -> None:
    """Refuse a wait that would leave the body inside a step that must not start twice."""
    holds = _enclosing.get().holds
    if holds is not None:
        raise BadOption(
            f'cannot wait for {name!r} inside step {holds!r}: a step with on_crash="hold" must not '
            "start twice. Move the wait out of the step."
        )


def _check_kind(known: StepRecord, kind: str) -> None:
    if known.kind != kind:
        raise BadOption(
            f"step {known.name!r} is recorded as a {known.kind}, and the code now has a {kind} of "
            "that name: give the new step another name while earlier runs are still live"
        )
