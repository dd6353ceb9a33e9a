"""Decides which requests are guarded and how, for both ASGI and WSGI."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import NamedTuple, TypedDict

from duly.errors import BadOption, ClaimLost, PayloadError, StoreError
from duly.guard import Guard, GuardClaim
from duly.guard.entry import KeyEntry
from duly.guard.guard import check_ttl
from duly.integrations.http_idempotency.quota import Quota
from duly.integrations.http_idempotency.replies import ProblemResponses, Replies, Reply
from duly.integrations.http_idempotency.request import (
    KEY_HEADER,
    MalformedKey,
    Request,
    credentials,
    fingerprint,
    parse_key,
    parse_length,
    scoped_key,
)
from duly.integrations.http_idempotency.response_recorder import ResponseRecorder
from duly.limits import GUARD_TTL_SECONDS, HTTP_BODY_BYTES, HTTP_KEPT_RESPONSES

_SAFE = {"GET", "HEAD", "OPTIONS", "TRACE"}
_TRY_AGAIN = {
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.CONFLICT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}
# The application did nothing, and a client may send the request again after correcting it.
_REFUSALS = {401, 403, 404, 405, 413, 415, 422}
_REPLIES = Replies()


def is_final(status: int) -> bool:
    """Return whether a response with this status completes its request.

    All do except 5xx, statuses that ask for a retry, and refusals of the request.
    """
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TRY_AGAIN | _REFUSALS


class MiddlewareOptions(TypedDict, total=False):
    """The options of both kinds of middleware; see `IdempotencyPolicy`."""

    methods: Sequence[str]
    required: Callable[[Request], bool] | Sequence[str] | None
    ttl: float | None
    scope: Callable[[Request], str | None]
    max_body: int
    max_kept: int
    keeps: Callable[[int], bool]
    documentation: str | None


class KeyedRequest(NamedTuple):
    """A request that may be guarded."""

    key: str
    """The key in the ledger."""
    scope: str


class ClaimedRequest(NamedTuple):
    """A request that this process handles."""

    claim: GuardClaim
    scope: str


class IdempotencyPolicy:
    """Decides how to handle requests that have or should have a key."""

    def __init__(
        self,
        guard: Guard,
        *,
        methods: Sequence[str] = ("POST", "PATCH"),
        required: Callable[[Request], bool] | Sequence[str] | None = None,
        ttl: float | None = GUARD_TTL_SECONDS,
        scope: Callable[[Request], str | None] = credentials,
        max_body: int = HTTP_BODY_BYTES,
        max_kept: int = HTTP_KEPT_RESPONSES,
        keeps: Callable[[int], bool] = is_final,
        documentation: str | None = None,
    ) -> None:
        """Guard requests of `methods` that have a key.

        `required` selects the requests that must have one: a function of the request, or path
        prefixes. `ttl` is for how many seconds a response is kept. `scope` returns the proven
        identity of the caller as a text. Only a hash of it is stored. If it returns None for a
        request with a key, the request is refused. `max_kept` is how many responses one caller may
        keep within `ttl`. `keeps` decides by status whether a response is kept and replayed; after
        any other response the request may run again. `documentation` is the address that problem
        details link to.
        """
        # Lower-case names would match no request, so nothing would be guarded.
        are_names = not isinstance(methods, str) and all(name.isupper() for name in methods)
        if not methods or not are_names or _SAFE.intersection(methods):
            raise BadOption(
                f"methods must be a sequence such as ('POST', 'PATCH'), not {methods!r}; "
                f"{', '.join(sorted(_SAFE))} change nothing and need no key"
            )
        if max_body < 0:
            raise BadOption(f"max_body must be a number of bytes, not {max_body!r}")
        if max_kept < 1:
            raise BadOption(
                f"max_kept must be a number of responses of at least 1, not {max_kept!r}"
            )
        self.max_body = max_body
        self.keeps = keeps
        self.problems = ProblemResponses(documentation)
        self._guard = guard
        self._methods = frozenset(methods)
        self._requires = required if callable(required) else _beneath(required or ())
        self._ttl = check_ttl(ttl)
        self._scope = scope
        self._quota = Quota(guard, limit=max_kept, ttl=self._ttl)

    def screen(self, request: Request) -> KeyedRequest | Reply | None:
        """Return how to guard a request, a reply to send instead, or None to let it pass."""
        if request.method not in self._methods:
            return None
        value = request.headers.get(KEY_HEADER)
        if value is None:
            return self.problems.key_missing() if self._requires(request) else None
        try:
            key = parse_key(value)
        except MalformedKey as error:
            return self.problems.key_malformed(str(error))
        announced = parse_length(request.headers.get("content-length", ""))
        if announced is not None and announced > self.max_body:
            return self.problems.body_too_large(self.max_body)
        scope = self._scope(request)
        if scope is not None and not isinstance(scope, str):
            raise BadOption(f"scope must return a string or None, not {scope!r:.80}")
        if not scope:
            return self.problems.caller_unknown()
        return KeyedRequest(scoped_key(key, scope), scope)

    def enter(self, ticket: KeyedRequest, request: Request, body: bytes) -> KeyEntry:
        """Return an entry that acquires the key, or raises Busy, KeyConflict or a StoreError."""
        return self._guard.enter(
            ticket.key, ttl=self._ttl, fingerprint=fingerprint(request, body), results=_REPLIES
        )

    def refuse(self, entry: ClaimedRequest) -> Reply | None:
        """Return the reply to a caller whose quota is used up, or None if the request may start."""
        try:
            if not self._quota.is_used_up(entry.scope):
                return None
        except StoreError as error:
            return self.problems.not_entered(error)
        return self.problems.quota_used_up(self._quota.seconds_left)

    def replay(self, claim: GuardClaim) -> Reply:
        """Return the stored response of the first request."""
        try:
            reply: Reply = claim.result
        except PayloadError:
            return self.problems.not_kept()
        return reply.replayed

    def settle(self, entry: ClaimedRequest, recording: ResponseRecorder) -> None:
        """Settle the key. Raise ClaimLost or a StoreError if the response cannot be relied on.

        This must happen before the client can have the whole response.
        """
        if not recording.is_kept:
            self.release(entry)
            return
        reply = recording.reply()
        entry.claim.done(reply)
        # The response is recorded, so it may be sent even if it could not be counted.
        with suppress(StoreError):
            self._quota.charge(entry.scope, reply.size)

    def release(self, entry: ClaimedRequest) -> None:
        """Release the key so that the request may run again, and remove it from the ledger."""
        # A new holder may have the key by now. A key that cannot be released expires with its
        # lease.
        with suppress(ClaimLost, StoreError):
            entry.claim.fail(forget=True)


def _beneath(prefixes: Sequence[str]) -> Callable[[Request], bool]:
    """Return whether a path is one of these or below one: /pay matches /pay/1, not /payments."""
    given = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    if any(not prefix.startswith("/") for prefix in given):
        raise BadOption(f"required must be path prefixes such as '/payments', not {prefixes!r}")
    folders = tuple(prefix.rstrip("/") + "/" for prefix in given)
    return lambda request: f"{request.path}/".startswith(folders)
