"""Which requests are guarded and how, for ASGI and WSGI alike."""

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
# The application did nothing, and a client that has corrected the request may send it again.
_REFUSALS = {401, 403, 404, 405, 413, 415, 422}
_REPLIES = Replies()


def is_final(status: int) -> bool:
    """Return whether a response ends its request.

    All do but 5xx, those that ask to try again, and those to requests that were refused.
    """
    return status < HTTPStatus.INTERNAL_SERVER_ERROR and status not in _TRY_AGAIN | _REFUSALS


class MiddlewareOptions(TypedDict, total=False):
    """What both kinds of middleware can be told; see `Policy`."""

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
    """In the ledger."""
    scope: str


class ClaimedRequest(NamedTuple):
    """A request that this process carries out."""

    claim: GuardClaim
    scope: str


class IdempotencyPolicy:
    """The decisions about a request with a key, and about one that should have one."""

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
        """Guard requests of `methods` that carry a key.

        `required` says which must have one: a function of the request, or path prefixes. `ttl` is
        for how many seconds a response is kept. `scope` returns who the caller has proved to be, as
        a text of which only a hash is stored; a request for which it returns None is refused if it
        has a key. `max_kept` is how many responses one caller may keep within `ttl`. `keeps` says
        by its status whether a response is kept and replayed; after any other the request may be
        carried out again. `documentation` is the address that problem details link to.
        """
        # In small letters they would match no request, and nothing would be guarded.
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
        """Return how to guard it, what to answer instead, or None if it is not our matter."""
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
        """Return what gives the key, or raises Busy, KeyConflict or a StoreError."""
        return self._guard.enter(
            ticket.key, ttl=self._ttl, fingerprint=fingerprint(request, body), results=_REPLIES
        )

    def refuse(self, entry: ClaimedRequest) -> Reply | None:
        """Return what to answer to a caller who may keep no more; None if the request may begin."""
        try:
            if not self._quota.is_used_up(entry.scope):
                return None
        except StoreError as error:
            return self.problems.not_entered(error)
        return self.problems.quota_used_up(self._quota.seconds_left)

    def replay(self, claim: GuardClaim) -> Reply:
        """Return the response of who has carried the request out before."""
        try:
            reply: Reply = claim.result
        except PayloadError:
            return self.problems.not_kept()
        return reply.replayed

    def settle(self, entry: ClaimedRequest, recording: ResponseRecorder) -> None:
        """Say how the request ended; ClaimLost or a StoreError if a response cannot be relied on.

        It is said before the client can have the whole response.
        """
        if not recording.is_kept:
            self.release(entry)
            return
        reply = recording.reply()
        entry.claim.done(reply)
        # The response is on record, and may go out though it could not be counted.
        with suppress(StoreError):
            self._quota.charge(entry.scope, reply.size)

    def release(self, entry: ClaimedRequest) -> None:
        """Let the request be carried out again, and leave nothing of it in the ledger."""
        # Whoever has taken it over decides; a key that cannot be let go is free with its lease.
        with suppress(ClaimLost, StoreError):
            entry.claim.fail(forget=True)


def _beneath(prefixes: Sequence[str]) -> Callable[[Request], bool]:
    """Return whether a path is one of these or beneath one: /pay has /pay/1 and not /payments."""
    given = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    if any(not prefix.startswith("/") for prefix in given):
        raise BadOption(f"required must be path prefixes such as '/payments', not {prefixes!r}")
    folders = tuple(prefix.rstrip("/") + "/" for prefix in given)
    return lambda request: f"{request.path}/".startswith(folders)
