"""Dramatiq actors whose messages are carried out once per key."""

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
"""The result of a short body is worth waiting for, where putting off costs a lease."""
_LEAST_DELAY_SECONDS = 0.2
_MILLISECONDS = 1000


class WorkerLostTooOften(DulyError, SkipMessage):
    """The processes that ran a message died again and again; it is in the dead-letter queue."""

    def __init__(self, actor: str, losses: int) -> None:
        super().__init__(
            f"{actor} was not run: {losses} processes died or froze while they ran it with these "
            "arguments; send it again when the cause is fixed"
        )


class MessagePostponed(SkipMessage):
    """Another worker has the message's key; a copy of the message comes when its lease is over."""


class IdempotentMiddleware(Middleware):
    """Lets actors that say `idempotent=True` run once per key, and keeps their results.

    Options of such an actor: `idempotent_key`, which is given the arguments and returns a text,
    unique among the messages of this actor (without it equal arguments are one key);
    `idempotent_ttl`, for how many seconds a result is known, None being for ever;
    `idempotent_wait`, for how many seconds a thread waits for who is running the body before it
    puts the message off; and `crash_limit`, after how many processes that died in it a message is
    not tried again.
    """

    def __init__(self, guard: Guard) -> None:
        """Keep keys in this guard."""
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
        """Put the guard around an actor's function."""
        # Dramatiq goes on without a middleware that fails, unless that says so with this error.
        if not actor.options.get("idempotent"):
            if self.actor_options & actor.options.keys():
                raise MiddlewareError(f"{actor.actor_name} is not guarded; set idempotent=True")
            return
        try:
            actor.fn = self._guarded(broker, actor)
        except Exception as error:
            raise MiddlewareError(f"{actor.actor_name} cannot be guarded: {error}") from error

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:  # noqa: ARG002 - Dramatiq's own
        """Remember what this thread is about to run."""
        self._message.set(message)

    def after_process_message(
        self,
        broker: Broker,  # noqa: ARG002 - Dramatiq's own
        message: MessageProxy,  # noqa: ARG002 - Dramatiq's own
        *,
        result: object = None,  # noqa: ARG002 - Dramatiq's own
        exception: BaseException | None = None,  # noqa: ARG002 - Dramatiq's own
    ) -> None:
        """Forget it."""
        self._message.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Forget it."""
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
                return function(*args, **kwargs)  # Nobody's message: it is the plain function.
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
                            # Somebody else runs it now. Were this message the only one, and that
                            # one dies, nobody would.
                            raise _postpone(broker, message, self.guard.lease) from lost

                    return run_body(claim, partial(function, *args, **kwargs), end)
            except Busy as busy:
                if busy is not once.refusal:
                    raise
                raise _postpone(broker, message, busy.retry_after) from busy
            except TimeLimitExceeded:
                if once.claim is None or not once.is_done:
                    raise
                return once.claim.result  # The limit came too late: it was done in time.

        run.key_for = lambda *args, **kwargs: call.key_for(args, kwargs)  # type: ignore[attr-defined] # as the guard's own
        return run


def _postpone(broker: Broker, message: MessageProxy, seconds: float) -> MessagePostponed:
    """Send a copy of a message for later; that is no retry of its own, and no result."""
    delay = max(seconds, _LEAST_DELAY_SECONDS)
    try:
        broker.enqueue(message, delay=round(delay * _MILLISECONDS))  # type: ignore[arg-type] # a proxy is one
    except Exception:
        # Dramatiq would acknowledge it; in the dead-letter queue it is not lost.
        message.fail()
        raise
    # Dramatiq would keep None as the result of what is skipped.
    message.options["store_results"] = False
    return MessagePostponed(f"{message.actor_name} is delayed by {delay:.1f} s: its key is held")
