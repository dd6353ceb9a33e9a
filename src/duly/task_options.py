"""Builds the definition of a task from a function and its options."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from duly.context import RunConnection
from duly.core.amounts import check_priority, check_retention, microseconds, retention_of
from duly.core.class_codecs import signature_of
from duly.core.key import check_name, check_queue, check_unique
from duly.core.payload import CallCodec
from duly.core.retry import NO_RETRIES, Retry
from duly.errors import BadOption
from duly.registry import Definition, task_name
from duly.task import DEFAULT_KEY_TTL

if TYPE_CHECKING:
    from duly.carrier import Carrier


def define(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    retries: int | Retry = 0,
    timeout: float | None = None,
    queue: str = "default",
    priority: int = 0,
    on_crash: str = "rerun",
    executor: str | None = None,
    transaction: bool = False,
    transaction_limit: float | None = None,
    key_ttl: float | None = DEFAULT_KEY_TTL,
    unique: str = "run",
    expires: float | None = None,
    aliases: tuple[str, ...] = (),
    redact: tuple[str, ...] = (),
    carrier: "Carrier | None" = None,
    limit: int | None = None,
    limit_key: Callable[..., str] | None = None,
    retention: float | timedelta | str | None = None,
) -> Definition:
    """Check the options of a task and return its definition."""
    if not inspect.isroutine(function):
        message = (
            f"@app.task must decorate a function, not {function!r}; use @app.task(name=…) to set "
            "the name"
        )
        raise BadOption(message)
    is_async = inspect.iscoroutinefunction(function)
    if on_crash not in {"rerun", "hold"}:
        message = f'on_crash must be "rerun" or "hold", not {on_crash!r}'
        raise BadOption(message)
    retry = _retry(retries, is_hold=on_crash == "hold")
    for what, length in (("timeout", timeout), ("transaction_limit", transaction_limit)):
        if length is not None and not (isinstance(length, int | float) and length > 0):
            message = f"{what} must be above 0 seconds, not {length!r}"
            raise BadOption(message)
    for what, seconds in (("expires", expires), ("key_ttl", key_ttl)):
        if seconds is not None:
            microseconds(what, seconds)
    connection = _connection_parameter(function, transaction=transaction)
    return Definition(
        name=check_name("task name", name or task_name(function)),
        function=function,
        codec=CallCodec(function, redact=_texts("redact", redact), without=connection),
        retry=retry,
        timeout=timeout,
        queue=check_queue(queue),
        priority=check_priority(priority),
        hold=on_crash == "hold",
        executor=_executor(executor, transaction=transaction, is_async=is_async),
        transaction=transaction,
        transaction_limit=transaction_limit,
        key_ttl=key_ttl,
        unique=check_unique(unique),
        expires=expires,
        aliases=tuple(check_name("alias", alias) for alias in _texts("aliases", aliases)),
        redact=tuple(redact),
        carrier=carrier,
        connection=connection,
        limit=_limit(limit, limit_key, carrier),
        limit_key=limit_key,
        retention=_retention(retention),
    )


def _retry(retries: int | Retry, *, is_hold: bool) -> Retry:
    """Return the retry policy. A task with on_crash="hold" must name the exceptions to retry."""
    retry = retries if isinstance(retries, Retry) else Retry(retries) if retries else NO_RETRIES
    if is_hold and retry.limit and not retry.on:
        message = (
            'on_crash="hold" means at most once, so retries need Retry(…, on=(…)) with the '
            "exceptions after which a retry is safe"
        )
        raise BadOption(message)
    return retry


def _retention(given: float | timedelta | str | None) -> float | None:
    """Return for how many seconds runs are kept. None means as in the settings."""
    if given is None:
        return None
    value = given.total_seconds() if isinstance(given, timedelta) else given
    try:
        seconds = retention_of(value)
    except TypeError as error:
        raise BadOption(f"retention cannot be {given!r}: {error}") from error
    check_retention("retention", seconds)
    return seconds


def _limit(
    limit: int | None, limit_key: Callable[..., str] | None, carrier: "Carrier | None"
) -> int | None:
    """Return how many runs may be running at once, or raise BadOption."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadOption(f"limit must be a whole number of at least 1, not {limit!r}")
    if limit is None and limit_key is not None:
        raise BadOption("limit_key selects what limit=… counts; pass limit too")
    if limit is not None and carrier is not None:
        raise BadOption("a task that another engine runs cannot have a limit: that engine runs it")
    return limit


def _texts(what: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return names. A single text would be read as its letters."""
    if not isinstance(given, tuple | list):
        message = f"{what} must be a tuple of strings, such as ({given!r},), not {given!r}"
        raise BadOption(message)
    return tuple(given)


def _executor(asked: str | None, *, transaction: bool, is_async: bool) -> str:
    """Return where the body runs, or raise BadOption."""
    found = asked or ("loop" if is_async else "thread")
    if found not in {"loop", "thread", "process"}:
        message = f'executor must be "loop", "thread" or "process", not {asked!r}'
        raise BadOption(message)
    if (found == "loop") != is_async and found != "process":
        message = f"executor={asked!r} does not fit: async def runs on the loop, def on threads"
        raise BadOption(message)
    if transaction and found != "thread":
        message = (
            "transaction=True needs a plain def task, which runs on a thread; in an async def "
            "task, write in a plain function: `await duly.astep(name, function, transaction=True)`"
        )
        raise BadOption(message)
    return found


def _connection_parameter(function: Callable[..., Any], *, transaction: bool) -> str | None:
    """Return the name of the parameter that is annotated as RunConnection, if there is one."""
    for parameter in signature_of(function).parameters.values():
        annotation = parameter.annotation
        # With `from __future__ import annotations` it is a text.
        is_named = isinstance(annotation, str) and annotation.endswith("RunConnection")
        if annotation is RunConnection or is_named:
            if not transaction:
                message = (
                    f"parameter {parameter.name!r} needs a transaction: @app.task(transaction=True)"
                )
                raise BadOption(message)
            return parameter.name
    return None
