"""A task: a function that can be enqueued, and the options of one call."""

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from duly.clock import new_id
from duly.core.key import check_key, check_name, check_tags
from duly.errors import BadOption
from duly.limits import DELAY_SECONDS, KEY_TTL_SECONDS, PRIORITY
from duly.registry import Definition
from duly.run import Run
from duly.store.protocol import Enqueue, Key

if TYPE_CHECKING:
    from duly.app import Duly

P = ParamSpec("P")
R = TypeVar("R")


class Call(Generic[R]):
    """A call of a task that was checked and encoded, ready to be enqueued."""

    __slots__ = ("definition", "key", "op")

    def __init__(self, definition: Definition, op: Enqueue) -> None:
        self.definition = definition
        self.op = op


class Task(Generic[P, R]):
    """A function and its policy. Calling it runs the plain function."""

    def __init__(self, app: "Duly", definition: Definition) -> None:
        self._app = app
        self.definition = definition
        self.__wrapped__ = definition.function
        self.__name__ = definition.function.__name__
        self.__qualname__ = definition.function.__qualname__
        self.__module__ = definition.function.__module__
        self.__doc__ = definition.function.__doc__

    @property
    def name(self) -> str:
        """The name runs carry."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function, here and now."""
        result: R = self.definition.function(*args, **kwargs)
        return result

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run; it is durable when this returns."""
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run without blocking the event loop; it is durable when this returns."""
        return await self._plain.aenqueue(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode a call for `app.enqueue_many`."""
        return self._plain.call(*args, **kwargs)

    def using(  # noqa: PLR0913 - one keyword per option
        self,
        *,
        key: str | None = None,
        delay: float | timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        tags: dict[str, str] | None = None,
        expires: float | timedelta | None = None,
        unique: str | None = None,
    ) -> "Bound[P, R]":
        """Return the task with options for the calls made through it."""
        definition = self.definition
        if delay is not None and at is not None:
            message = "a call has either delay= or at=, not both"
            raise BadOption(message)
        return Bound(
            self._app,
            definition,
            key=None if key is None else check_key(key),
            unique=check_unique(unique or definition.unique),
            delay=0 if delay is None else microseconds("delay", delay),
            at=None if at is None else instant("at", at),
            queue=definition.queue if queue is None else check_name("queue", queue),
            priority=definition.priority if priority is None else check_priority(priority),
            tags=encode_tags(tags),
            expires=_expiry(definition, expires),
        )

    @property
    def _plain(self) -> "Bound[P, R]":
        found: Bound[P, R] | None = self.__dict__.get("_bound")
        if found is None:
            found = self.__dict__["_bound"] = self.using()
        return found

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class Bound(Generic[P, R]):
    """A task with the options of its next calls."""

    __slots__ = ("_app", "_definition", "_key", "_options", "_unique")

    def __init__(
        self,
        app: "Duly",
        definition: Definition,
        *,
        key: str | None,
        unique: str,
        **options: Any,  # noqa: ANN401 - made by Task.using alone
    ) -> None:
        self._app = app
        self._definition = definition
        self._key = key
        self._unique = unique
        self._options = options

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode a call for `app.enqueue_many`."""
        definition, options = self._definition, self._options
        key = None
        if self._key is not None:
            ttl = definition.key_ttl
            key = Key(
                self._key,
                definition.codec.fingerprint(args, kwargs),
                None if ttl is None else int(ttl * 1e6),
                self._unique == "active",
            )
        op = Enqueue(
            new_id(),
            definition.name,
            options["queue"],
            definition.lane,
            options["priority"],
            definition.codec.encode(args, kwargs),
            options["delay"],
            options["at"],
            options["expires"],
            options["tags"],
            key,
        )
        return Call(definition, op)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run; it is durable when this returns."""
        return self._app.enqueue(self.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run without blocking the event loop; it is durable when this returns."""
        return await self._app.aenqueue(self.call(*args, **kwargs))


def microseconds(what: str, value: float | timedelta) -> int:
    """Return a duration in microseconds, or say why it cannot be one."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        message = f"{what} must be a number of seconds or a timedelta, not {value!r}"
        raise BadOption(message)
    if not 0 <= seconds <= DELAY_SECONDS:
        message = f"{what} must be from 0 to {DELAY_SECONDS} seconds, not {seconds!r}"
        raise BadOption(message)
    return int(seconds * 1_000_000)


_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def instant(what: str, value: datetime) -> int:
    """Return an aware datetime in microseconds, or say why it cannot be one."""
    if not isinstance(value, datetime):
        message = f"{what} must be a datetime, not {value!r}"
        raise BadOption(message)
    if value.tzinfo is None or value.utcoffset() is None:
        message = (
            f"{what}={value.isoformat()} has no time zone, so it names no instant; "
            f"use an aware datetime, e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
        raise BadOption(message)
    return (value - _EPOCH) // timedelta(microseconds=1)


def check_priority(value: int) -> int:
    """Return a priority, or say why it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY:
        message = f"priority must be a whole number within ±{PRIORITY}, not {value!r}"
        raise BadOption(message)
    return value


def check_unique(value: str) -> str:
    """Return how long a key holds, or say why it cannot be so."""
    if value not in {"run", "active"}:
        message = f'unique must be "run" or "active", not {value!r}'
        raise BadOption(message)
    return value


def encode_tags(tags: dict[str, str] | None) -> str | None:
    """Return tags as stored."""
    return json.dumps(check_tags(tags)) if tags else None


def _expiry(definition: Definition, expires: float | timedelta | None) -> int | None:
    value = definition.expires if expires is None else expires
    return None if value is None else microseconds("expires", value)


DEFAULT_KEY_TTL = float(KEY_TTL_SECONDS)
