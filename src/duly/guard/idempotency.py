"""Functions that run once per key. Later callers get the result of the first call."""

import functools
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import starmap
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from duly.core.key import check_name
from duly.core.payload import CallCodec
from duly.errors import BadOption, PayloadError
from duly.guard.claim import GuardClaim
from duly.guard.entry import KeyEntry
from duly.guard.keys import key_of
from duly.registry import task_name

if TYPE_CHECKING:
    from duly.guard.guard import Guard


P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class IdempotentFunction(Protocol[P, R_co]):
    """A function wrapped by a guard."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the function, or return the result of the first equal call."""
        ...

    def key_for(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the key of a call."""
        ...

    def reset(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget a call, so that the function may run again. Return whether it was known."""
        ...


class KeyedFunction:
    """A function, and how its calls map to keys."""

    def __init__(
        self,
        guard: "Guard",
        function: Callable[..., Any],
        *,
        key: Callable[..., str] | None,
        name: str | None,
        ttl: float | None,
        wait: float,
    ) -> None:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadOption(f"{function.__qualname__} is a generator, which has no single result")
        self.guard = guard
        self.function = function
        self.name = check_name("name", name or _own_name(function))
        self._codec = CallCodec(function)
        self._key = key
        self._ttl = ttl
        self._wait = wait

    def key_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the key of a call."""
        if self._key is None:
            return key_of(self.name, self._codec, args, kwargs)
        # A name has no blanks, so no other pair of name and key gives the same text.
        return f"{self.name} {self._key(*args, **kwargs)}"

    def once(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KeyEntry:
        """Return the entry for a call."""
        return self.guard.enter(
            self.key_for(args, kwargs),
            ttl=self._ttl,
            fingerprint=self._fingerprint(args, kwargs),
            wait=self._wait,
            results=self._codec,
        )

    def _fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        if self._key is None:
            return None  # Equal keys mean equal arguments.
        try:
            return self._codec.fingerprint(args, kwargs)
        except PayloadError:
            return None  # They cannot be compared, so only the key decides.


def _own_name(function: Callable[..., Any]) -> str:
    """Return where a function is defined. Raise if the name may belong to several functions."""
    # Each call of the outer function makes a new one, and all lambdas have the same name. Such
    # functions would get each other's results.
    if "<" in function.__qualname__:
        raise BadOption(
            f"several functions may have the name {task_name(function)}, and they would share keys "
            "and results; give this function its own name: name=…"
        )
    return task_name(function)


def run_body(
    claim: GuardClaim,
    body: Callable[[], R_co],
    end: Callable[[R_co], object],
    returned: list[R_co] | None = None,
) -> R_co:
    """Run a body and report how it ended. An exception after the body has returned is too late.

    A C iterator calls the body, so that its result is saved before the next Python instruction, at
    which an exception from outside could occur. A body that continues to work after it has a result
    appends the result to `returned` itself.
    """
    returned = [] if returned is None else returned
    try:
        returned.extend(starmap(body, ((),)))
        end(returned[0])
    except BaseException:
        if returned and claim.is_open:
            end(returned[0])
        raise
    return returned[0]


async def arun_body(
    claim: GuardClaim,
    body: Callable[[], Awaitable[R_co]],
    end: Callable[[R_co], Awaitable[object]],
    end_now: Callable[[R_co], object],
) -> R_co:
    """Run a coroutine as `run_body` does.

    `end_now` is for callers that may have no event loop left.
    """
    returned: list[R_co] = []
    try:
        # No exception can occur between the end of the awaited body and the end of this call.
        returned.append(await body())
        await end(returned[0])
    except BaseException:
        if returned and claim.is_open:
            end_now(returned[0])
        raise
    return returned[0]


def guard_function(call: KeyedFunction) -> Any:  # noqa: ANN401 - as the function was
    """Return the function wrapped by the guard."""
    if inspect.iscoroutinefunction(call.function):

        @functools.wraps(call.function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            async with call.once(args, kwargs) as claim:
                if claim.first:
                    body = partial(call.function, *args, **kwargs)
                    return await arun_body(claim, body, claim.adone, claim.done)
                return claim.result

        run: Any = run_async
    else:

        @functools.wraps(call.function)
        def run_sync(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            with call.once(args, kwargs) as claim:
                if claim.first:
                    return run_body(claim, partial(call.function, *args, **kwargs), claim.done)
                return claim.result

        run = run_sync
    run.key_for = lambda *args, **kwargs: call.key_for(args, kwargs)
    run.reset = lambda *args, **kwargs: call.guard.reset(call.key_for(args, kwargs))
    return run
