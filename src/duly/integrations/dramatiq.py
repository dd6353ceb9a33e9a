"""Dramatiq actors whose messages run once per key."""

import functools
from contextvars import ContextVar
from functools import partial
from typing import Any

from duly.errors import Busy, ClaimLost, DulyError
from duly.guard import Guard
from duly.guard.guard import check_ttl
from duly.guard.idempotency import KeyedFunction, run_body
from duly.integrations.extras import missing
from duly.limits import CRASH_LIMIT

try:
    from dramatiq import Actor, Broker
    from dramatiq.broker import MessageProxy
    from dramatiq.middleware import Middleware, MiddlewareError, SkipMessage, TimeLimitExceeded
except ModuleNotFoundError as error:
    raise missing(error, "dramatiq") from error

_WAIT_SECONDS = 1.0
"""Waiting this long for the result of a short task is cheaper than postponing by a lease."""
_LEAST_DELAY_SECONDS = 0.2
_MILLISECONDS = 1000


class WorkerLostTooOften(DulyError, SkipMessage):
    """The processes that ran a message died too often. The message is in the dead-letter queue."""

    def __init__(self, actor: str, losses: int) -> None:
        super().__init__(
            f"{actor} was not run: {losses} processes died or froze while they ran it with these "
            "arguments; send it again when the cause is fixed"
        )


class MessagePostponed(SkipMessage):
    """Another worker holds the message's key. A copy of the message arrives when its lease ends."""


class IdempotentMiddleware(Middleware):
    """Runs the messages of actors with `idempotent=True` once per key, and keeps their results.

    Options of such an actor: `idempotent_key` is a function that returns a text for the arguments,
    unique among the messages of this actor. Without it, equal arguments have the same key.
    `idempotent_ttl` is how many seconds a result is kept; None keeps it forever. `idempotent_wait`
    is how many seconds a thread waits for another worker that runs the message before it postpones
    its own. After `crash_limit` processes died while they ran a message, it is not retried.
    """

    def __init__(self, guard: Guard) -> None:
        """Keep the keys in this guard."""
        self.guard = guard
        self._message: ContextVar[MessageProxy | None] = ContextVar("duly_message", default=None)

    @property
    def actor_options(self) -> set[str]:
        """The options that actors may have."""
        return {
            "idempotent",
            "idempotent_key",
            "idempotent_ttl",
            "idempotent_wait",
            "crash_limit",
        }

    def before_declare_actor(self, broker: Broker, actor: "Actor[..., Any]") -> None:
        """Wrap an actor's function in the guard."""
        # Dramatiq continues without a middleware that fails, unless it raises MiddlewareError.
        if not actor.options.get("idempotent"):
            if self.actor_options & actor.options.keys():
                raise MiddlewareError(f"{actor.actor_name} is not guarded; set idempotent=True")
            return
        try:
            actor.fn = self._guarded(broker, actor)
        except Exception as error:
            raise MiddlewareError(f"{actor.actor_name} cannot be guarded: {error}") from error

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:  # noqa: ARG002 - Dramatiq's own
        """Remember the message that this thread is about to run."""
        self._message.set(message)

    def after_process_message(
        self,
        broker: Broker,  # noqa: ARG002 - Dramatiq's own
        message: MessageProxy,  # noqa: ARG002 - Dramatiq's own
        *,
        result: object = None,  # noqa: ARG002 - Dramatiq's own
        exception: BaseException | None = None,  # noqa: ARG002 - Dramatiq's own
    ) -> None:
        """Forget the message."""
        self._message.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Forget the message."""
        self.after_process_message(broker, message)

    def _guarded(self, broker: Broker, actor: "Actor[..., Any]") -> Any:  # noqa: ANN401 - a function
        function, options = actor.fn, actor.options
        ttl = check_ttl(options.get("idempotent_ttl", self.guard.ttl))
        crash_limit = options.get("crash_limit", CRASH_LIMIT)
        call = KeyedFunction(
            self.guard,
            function,
            key=options.get("idempotent_key"),
            name=actor.actor_name,
            ttl=ttl,
            wait=options.get("idempotent_wait", _WAIT_SECONDS),
        )

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
            message = self._message.get()
            if message is None or message.actor_name != actor.actor_name:
                # A direct call without a message runs the plain function.
                return function(*args, **kwargs)
            self._message.set(None)
            once = call.once(args, kwargs)
            try:
                with once as claim:
                    if not claim.first:
                        return claim.result
                    if claim.losses >= crash_limit:
                        message.fail()
                        raise WorkerLostTooOften(actor.actor_name, claim.losses)

                    def end(result: object) -> None:
                        try:
                            claim.done(result)
                        except ClaimLost as lost:
                            # Another worker runs the message now. If that worker dies and this was
                            # the only copy, the message would be lost.
                            raise _postpone(broker, message, self.guard.lease) from lost

                    return run_body(claim, partial(function, *args, **kwargs), end)
            except Busy as busy:
                if busy is not once.refusal:
                    raise
                raise _postpone(broker, message, busy.retry_after) from busy
            except TimeLimitExceeded:
                if once.claim is None or not once.is_done:
                    raise
                return once.claim.result  # The limit came too late: the message had been completed.

        run.key_for = lambda *args, **kwargs: call.key_for(args, kwargs)  # type: ignore[attr-defined] # like the guard's own
        return run


def _postpone(broker: Broker, message: MessageProxy, seconds: float) -> MessagePostponed:
    """Send a copy of a message for later. It does not count as a retry, and stores no result."""
    delay = max(seconds, _LEAST_DELAY_SECONDS)
    try:
        broker.enqueue(message, delay=round(delay * _MILLISECONDS))  # type: ignore[arg-type] # a proxy is one
    except Exception:
        # Dramatiq would acknowledge the message. In the dead-letter queue it is not lost.
        message.fail()
        raise
    # Dramatiq would store None as the result of a skipped message.
    message.options["store_results"] = False
    return MessagePostponed(f"{message.actor_name} is delayed by {delay:.1f} s: its key is held")
