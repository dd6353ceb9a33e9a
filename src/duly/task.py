"""A task: a function that can be enqueued, and the options of its calls."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from datetime import datetime, timedelta
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar

from duly.app_protocol import AppProtocol
from duly.async_threads import run_in_thread
from duly.clock import new_id
from duly.connections import Connection, aexecute_dialogue, enqueue_dialogue, execute_dialogue
from duly.context import joined_connection
from duly.core.amounts import check_priority, instant, microseconds
from duly.core.batches import MOST_BYTES_PER_CHARACTER, batches
from duly.core.foreign_names import no_attribute, unknown_option
from duly.core.key import check_key, check_queue, check_unique, encode_tags
from duly.core.record import fast_constructor
from duly.errors import OUTAGES, BadOption, KeyConflict
from duly.limits import ENQUEUE_BATCH, KEY_TTL_SECONDS, TRANSACTION_BYTES
from duly.registry import Definition, Tracing
from duly.run import Run
from duly.store.ops.runs import Accepted, Enqueue, Key
from duly.store.outage_wait import as_repeatable, retry_after_error, submit_async

_YIELD_SECONDS = 0.0002

P = ParamSpec("P")
R = TypeVar("R")


class Call(Generic[R]):
    """A call of a task that was checked and encoded, ready to be enqueued."""

    __slots__ = ("op",)

    def __init__(self, op: Enqueue) -> None:
        self.op = op


class Task(Generic[P, R]):
    """A function and its policy. Calling it runs the plain function."""

    def __init__(self, host: AppProtocol, definition: Definition) -> None:
        self._app = host
        self.definition = definition
        self.__wrapped__ = definition.function
        self.__name__ = definition.function.__name__
        self.__qualname__ = definition.function.__qualname__
        self.__module__ = definition.function.__module__
        self.__doc__ = definition.function.__doc__

    @property
    def name(self) -> str:
        """The name that is stored with the task's runs."""
        return self.definition.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the plain function, here and now."""
        result: R = self.definition.function(*args, **kwargs)
        return result

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run. It is durable when this returns."""
        return self._plain.enqueue(*args, **kwargs)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run without blocking the event loop. It is durable when this returns."""
        return await self._plain.aenqueue(*args, **kwargs)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode a call for `app.enqueue_many`."""
        return self._plain.call(*args, **kwargs)

    def using(
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
        connection: Connection = None,
        wake: bool = True,
        **unknown: Never,
    ) -> "BoundTask[P, R]":
        """Return the task with options for the calls made through it.

        Args:
            key: While the key holds, calls with it and the same arguments return one run, and other
                arguments raise KeyConflict. 1 to 255 bytes; by default every call makes a new run.
            delay: Seconds until the run is due, at most ten years. By default it is due at once.
            at: The time at which the run is due, instead of `delay`. It needs a time zone.
            queue: The queue that the run waits in. By default that of the task.
            priority: Within a queue, runs with a higher number start first. By default that of the
                task.
            tags: Up to 32 names and texts to find the run by, each of at most 255 characters.
                Names that begin with `duly.` are reserved.
            expires: Seconds from the call after which the run is cancelled if it has not started.
                By default as the task says.
            unique: How long the key means one run, "run" or "active", as in `@app.task`. By default
                as the task says.
            connection: Your own connection to the store's database. The run is then part of your
                transaction: it exists, and workers are notified, only when you commit.
            wake: Whether workers are notified of the run. False, which needs a `connection`, lets
                them find it at their next poll.
        """
        definition = self.definition
        if unknown:
            raise BadOption(unknown_option(next(iter(unknown)), Task.using.__kwdefaults__ or ()))
        if delay is not None and at is not None:
            raise BadOption("pass delay= or at=, not both")
        if not wake and connection is None:
            raise BadOption("wake=False works only on your own connection: pass connection=…")
        return BoundTask(
            self._app,
            definition,
            key=None if key is None else check_key(key),
            unique=check_unique(unique or definition.unique),
            delay=0 if delay is None else microseconds("delay", delay),
            at=None if at is None else instant("at", at),
            queue=definition.queue if queue is None else check_queue(queue),
            priority=definition.priority if priority is None else check_priority(priority),
            tags=encode_tags(tags),
            expires=_expiry(definition, expires),
            connection=connection,
            wake=wake,
        )

    if not TYPE_CHECKING:  # A type checker would then accept every attribute.

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - it only raises
            raise AttributeError(no_attribute(name), name=name, obj=self)

    @cached_property
    def _plain(self) -> "BoundTask[P, R]":
        return self.using()

    def __reduce__(self) -> str:
        # The task has the place of its function, so it is pickled and copied like a function.
        return self.__qualname__

    def __repr__(self) -> str:
        return f"<task {self.name}>"


class BoundTask(Generic[P, R]):
    """A task with options for its next calls."""

    __slots__ = (
        "_app",
        "_codec",
        "_connection",
        "_definition",
        "_how",
        "_key",
        "_unique",
        "_wake",
        "_when",
    )

    def __init__(
        self,
        host: AppProtocol,
        definition: Definition,
        *,
        key: str | None,
        unique: str,
        queue: str,
        priority: int,
        delay: int,
        at: int | None,
        expires: int | None,
        tags: str | None,
        connection: Connection,
        wake: bool,
    ) -> None:
        self._app = host
        self._connection = connection
        self._wake = wake
        self._definition = definition
        self._codec = definition.codec
        self._key = key
        self._unique = unique
        # The fields of an Enqueue before the arguments and after them.
        self._how = (definition.name, queue, definition.lane, priority)
        self._when = (delay, at, expires, tags)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Check and encode a call for `app.enqueue_many`."""
        if self._connection is not None:
            raise BadOption("enqueue_many uses its own transactions: call enqueue(…) on each")
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        for hook in self._app.before_calls:
            hook()
        key = None if self._key is None else self._full_key(self._key, args, kwargs)
        arguments = self._codec.encode(args, kwargs)
        how, tracing = self._how, self._definition.tracing
        if self._definition.limit_key is not None:
            how = (*how[:2], self._definition.lane_of(args, kwargs), how[3])
        call: Call[R] = Call(_enqueue((new_id(), *how, arguments, *self._when, key)))
        return call if tracing is None else _add_trace_tags(call, tracing)

    def _full_key(self, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
        ttl = self._definition.key_ttl
        return Key(
            text,
            self._codec.fingerprint(args, kwargs),
            None if ttl is None else int(ttl * 1e6),
            self._unique == "active",
            self._definition.other_names(self._definition.name),
        )

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run. It is durable when this returns, or the caller's transaction commits."""
        call: Call[R] = self._call(args, kwargs)
        if self._connection is None:
            (run,) = accept(self._app, [call])
            return run
        return _accept_on(self._connection, self._app, call, wake=self._wake)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Accept a run without blocking the event loop. It is durable as with `enqueue`."""
        call: Call[R] = self._call(args, kwargs)
        if self._connection is None:
            return await aaccept(self._app, call)
        write = enqueue_dialogue(self._app.store, call.op, wake=self._wake)
        return _accepted(self._app, call, await aexecute_dialogue(self._connection, *write))


_enqueue = fast_constructor(Enqueue)


def _add_trace_tags(call: Call[R], tracing: Tracing) -> Call[R]:
    """Return the call with the current trace in its tags, under names that duly reserves."""
    op = call.op
    trace_tags = tracing.enqueue_span(op.task, op.queue, op.run_id)
    tags = (json.loads(op.tags) if op.tags else {}) | trace_tags
    return Call(op._replace(tags=json.dumps(tags))) if trace_tags else call


def accept(host: AppProtocol, calls: Sequence[Call[R]]) -> list[Run[R]]:
    """Write calls. They are durable when this returns; after an error, some of them may be.

    Inside the transaction of a task, they become part of that transaction.
    """
    store = host.store
    connection = joined_connection(store)
    if connection is not None:
        return [_accept_on(connection, host, call, wake=True) for call in calls]
    ops = [call.op for call in calls]
    if not store.queue_capacity.fit(ops):
        store.check_queue_capacity(ops)
    return _all_accepted(host, calls, store.apply(ops))


def _accept_on(connection: Connection, app: AppProtocol, call: Call[R], *, wake: bool) -> Run[R]:
    write = enqueue_dialogue(app.store, call.op, wake=wake)
    return _accepted(app, call, execute_dialogue(connection, *write))


def accept_many(host: AppProtocol, calls: Iterable[Call[R]]) -> list[Run[R]]:
    """Write calls in batches, one transaction each. They are durable when this returns.

    Inside the transaction of a task, they become part of that transaction.

    If a database server does the writing, the next batch is encoded meanwhile.
    """
    runs: list[Run[R]] = []
    written: _SubmittedBatch[R] | None = None
    try:
        for batch in _batches(calls):
            before, written = written, None
            if before is not None:
                before.wait()
            is_apart = joined_connection(host.store) is None and not host.store.has_one_writer
            if len(batch) == ENQUEUE_BATCH and is_apart:
                written = _SubmittedBatch(host, batch)
            if before is not None:
                runs += before.runs()
            if written is None:
                runs += accept(host, batch)
    except Exception:
        if written is not None:
            # The error of a wrong call reaches the caller when all calls before it are durable.
            written.runs()
        raise
    return runs + (written.runs() if written is not None else [])


class _SubmittedBatch(Generic[R]):
    """A batch of calls that the committer's thread writes."""

    def __init__(self, host: AppProtocol, calls: Sequence[Call[R]]) -> None:
        self._app = host
        self._calls = calls
        self._answers: Future[list[Any]] = Future()
        ops = [call.op for call in calls]
        if not host.store.queue_capacity.fit(ops):
            host.store.check_queue_capacity(ops)
        host.store.submit(ops, self._done)
        # Without this pause, the committer's thread cannot send anything until the interpreter
        # switches away from this thread, and the server would be idle meanwhile.
        time.sleep(_YIELD_SECONDS)

    def wait(self) -> None:
        """Wait until the batch is durable. Raise if that failed, or for a key conflict."""
        if any(answer.conflict for answer in self._result()):
            self.runs()

    def runs(self) -> list[Run[R]]:
        """Wait, and return the runs."""
        return _all_accepted(self._app, self._calls, self._result())

    def _result(self) -> list[Any]:
        try:
            return self._answers.result()
        except OUTAGES as error:
            ops = as_repeatable([call.op for call in self._calls])
            return retry_after_error(lambda: self._app.store.apply(ops), error)

    def _done(self, answers: list[Any] | BaseException) -> None:
        if isinstance(answers, BaseException):
            self._answers.set_exception(answers)
        else:
            self._answers.set_result(answers)


def _batches(calls: Iterable[Call[R]]) -> Iterator[list[Call[R]]]:
    # Counting characters is faster than counting bytes, and the bound need not be exact.
    return batches(
        calls,
        most=ENQUEUE_BATCH,
        most_bytes=TRANSACTION_BYTES // MOST_BYTES_PER_CHARACTER,
        size_of=lambda call: len(call.op.arguments),
    )


async def aaccept(host: AppProtocol, call: Call[R]) -> Run[R]:
    """Write one call from the committer's thread, which shares its commit with other calls.

    If this thread has a transaction open, the call becomes part of that transaction.
    """
    store = host.store
    connection = joined_connection(store)
    if connection is not None:
        return _accept_on(connection, host, call, wake=True)
    if not store.queue_capacity.fit(ops := [call.op]):
        await run_in_thread(partial(store.check_queue_capacity, ops))
    (answer,) = await submit_async(store, ops)
    return _accepted(host, call, answer)


def _all_accepted(host: AppProtocol, calls: Sequence[Call[R]], answers: list[Any]) -> list[Run[R]]:
    return [_accepted(host, call, answer) for call, answer in zip(calls, answers, strict=True)]


def _accepted(host: AppProtocol, call: Call[R], answer: Accepted) -> Run[R]:
    if answer.conflict:
        key = call.op.key
        raise KeyConflict("" if key is None else key.text, answer.run_id)
    return Run(host, answer.run_id, new=answer.new)


def _expiry(definition: Definition, expires: float | timedelta | None) -> int | None:
    value = definition.expires if expires is None else expires
    return None if value is None else microseconds("expires", value)


DEFAULT_KEY_TTL = float(KEY_TTL_SECONDS)
