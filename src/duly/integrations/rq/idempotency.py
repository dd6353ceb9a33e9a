"""Job functions that run once per key, however often RQ delivers them."""

import asyncio
import functools
import inspect
import math
import sys
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast

import rq
from rq.job import Job
from rq.timeouts import JobTimeoutException

from duly.errors import BadOption, Busy, ClaimLost
from duly.guard import Guard, GuardClaim
from duly.guard.entry import KeyEntry
from duly.guard.guard import check_ttl
from duly.guard.idempotency import IdempotentFunction, KeyedFunction, arun_body, run_body

P = ParamSpec("P")
R = TypeVar("R")

_NOTHING: Any = object()
_WAIT_SECONDS = 1.0
"""Waiting this long for the result of a short job is cheaper than postponing by a lease."""
_SYNC = "sync"
"""The worker name of a queue with is_async=False."""

_is_body_running: ContextVar[bool] = ContextVar("duly_rq_is_inside", default=False)


def idempotent(
    guard: Guard,
    *,
    key: Callable[..., str] | None = None,
    name: str | None = None,
    ttl: float | None = _NOTHING,
    wait: float = _WAIT_SECONDS,
) -> Callable[[Callable[P, R]], IdempotentFunction[P, R]]:
    """Run a job's function once per key, and return the first job's result to later jobs.

    Options are those of `guard.idempotent`. If another job holds the key, this job waits `wait`
    seconds for its result, and is then scheduled again for the end of the other's lease. That uses
    none of its retries, and needs a worker `--with-scheduler`. Calls outside a worker are guarded
    too, and raise Busy.
    """
    if not hasattr(rq.Worker, "handle_job_retry"):
        raise BadOption("this version of RQ cannot delay a job; install rq 2.2 or newer")
    kept = guard.ttl if ttl is _NOTHING else check_ttl(ttl)

    def decorate(function: Callable[P, R]) -> IdempotentFunction[P, R]:
        call = KeyedFunction(guard, function, key=key, name=name, ttl=kept, wait=wait)
        run = _async(call) if inspect.iscoroutinefunction(function) else _sync(call)
        run.key_for = lambda *args, **kwargs: call.key_for(args, kwargs)
        run.reset = lambda *args, **kwargs: guard.reset(call.key_for(args, kwargs))
        return cast(IdempotentFunction[P, R], run)

    return decorate


def _sync(call: KeyedFunction) -> Any:  # noqa: ANN401 - as the function was
    @functools.wraps(call.function)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        body = partial(call.function, *args, **kwargs)
        return _run(call, _job_of(call.function), call.once(args, kwargs), body, [])

    return run


def _async(call: KeyedFunction) -> Any:  # noqa: ANN401 - as the function was
    async def run_plainly(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        async with call.once(args, kwargs) as claim:
            if not claim.first:
                return claim.result

            async def end(result: object) -> None:
                await (claim.afail() if _is_retry_requested(result) else claim.adone(result))

            body = partial(call.function, *args, **kwargs)
            return await arun_body(claim, body, end, partial(_record_result, claim))

    @functools.wraps(call.function)
    def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        job = _job_of(call.function)
        if job is None:
            return run_plainly(*args, **kwargs)
        # RQ raises its timeout in this thread. It would leave RQ's own loop without cancelling the
        # coroutine, so use a separate loop.
        returned: list[Any] = []

        async def keep() -> None:
            # No timeout can be raised between the end of the awaited call and this append.
            returned.append(await call.function(*args, **kwargs))

        return _run(call, job, call.once(args, kwargs), lambda: asyncio.run(keep()), returned)

    return run


def _run(
    call: KeyedFunction,
    job: Job | None,
    once: KeyEntry,
    body: Callable[[], Any],
    returned: list[Any],
) -> Any:  # noqa: ANN401 - as the function
    lost: list[ClaimLost] = []
    try:
        with once as claim:
            if not claim.first:
                return claim.result
            # Use a separate context: a timeout may be raised before a variable could be reset here.
            result = copy_context().run(
                _run_in_context, claim, body, partial(_end, claim, lost), returned
            )
            return _postpone(job, lost[0], call.guard.lease) if lost else result
    except Busy as busy:
        if busy is not once.refusal:
            raise
        return _postpone(job, busy, busy.retry_after)
    except JobTimeoutException:
        if once.claim is None or not once.is_done:
            raise
        return once.claim.result  # The limit came too late: the job had been completed.


def _run_in_context(
    claim: GuardClaim, body: Callable[[], Any], end: Callable[[object], None], returned: list[Any]
) -> Any:  # noqa: ANN401 - as the function
    _is_body_running.set(True)
    return run_body(claim, body, end, returned)


def _end(claim: GuardClaim, lost: list[ClaimLost], result: object) -> None:
    """Record the end of a body that returned. Note it if the claim was lost."""
    try:
        _record_result(claim, result)
    except ClaimLost as error:
        lost.append(error)


def _record_result(claim: GuardClaim, result: object) -> None:
    claim.fail() if _is_retry_requested(result) else claim.done(result)


def _job_of(function: Callable[..., Any]) -> Job | None:
    """Return the job that a worker is running if it calls this function, else None."""
    job = rq.get_current_job()
    if job is None or job.worker_name == _SYNC or _is_body_running.get():
        return None
    asked = job.func
    is_ours = callable(asked) and inspect.unwrap(asked) is inspect.unwrap(function)
    return job if is_ours else None


def _is_retry_requested(result: object) -> bool:
    """Return whether the job asks RQ for a retry."""
    return isinstance(result, rq.Retry)


def _postpone(job: Job | None, why: Busy | ClaimLost, seconds: float) -> rq.Retry:
    """Return a value that makes RQ schedule the job again. It does not count as a retry.

    The other holder may still be working, so that the job finds its result later, or it has died.
    RQ removes the job from the started jobs only when it schedules it, so a crash in between loses
    nothing.
    """
    if job is None:
        raise why
    # RQ counts this as a retry, against the limit of a job that returns a Retry.
    job.number_of_retries = (job.number_of_retries or 0) - 1
    # RQ rounds instants down to whole seconds.
    return rq.Retry(max=sys.maxsize, interval=math.ceil(seconds) + 1)
