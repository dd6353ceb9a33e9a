"""Decides who may view the dashboard and who may act in it."""

import hashlib
import hmac
import inspect
import math
import string
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from duly.clock import new_secret, wall_seconds
from duly.core.class_codecs import signature_of
from duly.credentials import LoginLimit, check_password, client_key, read_basic
from duly.errors import BadOption
from duly.limits import SESSION_SECONDS, TOKEN_BITS

COOKIE = "duly_session"
NO_NAME = "anonymous"
"""The name of all viewers that a hook admits without a name."""
_FEWEST_CHARACTERS = 8


class Viewer(NamedTuple):
    """A viewer of the dashboard. An operator may also act, if the dashboard allows actions."""

    name: str
    role: Literal["viewer", "operator"] = "operator"


AuthResult = Viewer | str | bool | None
Auth = Callable[[Request], "AuthResult | Awaitable[AuthResult]"]
"""Returns a Viewer, or the name of an operator. None, "" and False refuse the request."""


def check_auth(auth: Auth | None) -> None:
    """Raise BadOption unless `auth` is a function that can be called with the request alone.

    The dashboard would not fill in parameters with FastAPI's `Depends`.
    """
    if auth is None:
        return
    if not callable(auth):
        raise BadOption(f"auth must be a function of the request, not {auth!r:.80}")
    try:
        parameters = signature_of(auth).parameters
    except ValueError:  # A C function may have no signature.
        return
    for name, parameter in parameters.items():
        if type(parameter.default).__name__ == "Depends" or "Depends(" in str(parameter.annotation):
            raise BadOption(
                "auth is called with the request, but FastAPI would have to fill in its parameter "
                f"{name!r}: read the request itself, or serve the dashboard with TaskAdmin(…, "
                "auth=…)"
            )


async def viewer_of(auth: Auth, request: Request) -> Viewer | None:
    """Return the viewer of a request. `auth` may be a sync or an async function."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(
        getattr(auth, "__call__", None)  # noqa: B004 - a class may have a coroutine there
    ):
        result = auth(request)
    else:
        result = await run_in_threadpool(auth, request)
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, Viewer):
        return result if result.name else None
    if isinstance(result, str) and result:
        return Viewer(result)
    return Viewer(NO_NAME) if result is True else None


def rate_limit_identity(auth: Auth, viewer: Viewer, request: Request) -> str:
    """Return the identity under which requests are counted: a name, or an address.

    An address is used if many viewers share a name: those with the token, and those that a hook
    admits without a name.
    """
    if isinstance(auth, TokenAuth) or viewer.name == NO_NAME:
        return f"at {client_key(client_of(request)).hex()}"
    return f"as {viewer.name}"


_LOWER, _UPPER, _DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
_ALPHABETS = (
    *(_DIGITS, f"{_DIGITS}abcdef", f"{_DIGITS}ABCDEF", _LOWER, _UPPER),
    *(_LOWER + _DIGITS, _UPPER + _DIGITS, _LOWER + _UPPER + _DIGITS),
)


def max_random_bits(token: str) -> float:
    """Return how many random bits a token has at most, judging by its characters.

    A token with few different characters, which no generator makes, has none.
    """
    characters = set(token)
    if len(characters) < _FEWEST_CHARACTERS:
        return 0.0
    size = min((len(known) for known in _ALPHABETS if characters <= set(known)), default=64)
    return len(token) * math.log2(size)


class TokenAuth:
    """One token opens the dashboard: typed into its page, or as `Authorization: Bearer …`."""

    def __init__(self, token: str, *, name: str = "token") -> None:
        if max_random_bits(token) < TOKEN_BITS:
            raise BadOption(
                f"a token must have at least {TOKEN_BITS} random bits; `python -c 'import secrets; "
                "print(secrets.token_urlsafe())'` makes one"
            )
        # The hash is compared and signs sessions. The token itself is not kept.
        self._hash = _hash(token)
        self.viewer = Viewer(name)
        """The viewer with the token or a session that it opened."""
        self._limit = LoginLimit()

    async def __call__(self, request: Request) -> Viewer | None:
        """Return the viewer if the request has the token. The dashboard checks sessions itself."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        return self.viewer if await self.accepts(token.strip(), request) else None

    async def accepts(self, token: str, request: Request) -> bool:
        """Return whether the token is right. Raise TooManyTries if the client must wait."""
        address = client_of(request)
        await self._limit.wait(address)
        ok = hmac.compare_digest(_hash(token), self._hash)
        if not ok:
            self._limit.note_failure(address)
        return ok

    def new_session(self) -> str:
        """Return a new session, which the browser keeps instead of the token."""
        payload = f"{new_secret()[:32]}.{int(wall_seconds()) + SESSION_SECONDS}"
        return f"{payload}.{self._signature_of(payload)}"

    def session_of(self, request: Request) -> str | None:
        """Return the id of a request's session, or None without a valid one.

        Its owner may have signed out, which the database records.
        """
        payload, _, signature = request.cookies.get(COOKIE, "").rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._signature_of(payload).encode()):
            return None
        session, _, until = payload.partition(".")
        is_open = session and until.isdecimal() and int(until) > wall_seconds()
        return session if is_open else None

    def _signature_of(self, payload: str) -> str:
        return hmac.new(self._hash, f"session {payload}".encode(), hashlib.sha256).hexdigest()


class BasicAuth:
    """Names and passwords. The users in `viewers` may only view."""

    challenge = 'Basic realm="duly", charset="UTF-8"'
    """Makes browsers ask for a name and password."""

    def __init__(
        self, operators: Mapping[str, str], *, viewers: Mapping[str, str] | None = None
    ) -> None:
        for name, password in (*operators.items(), *(viewers or {}).items()):
            check_password(name, password)
        self._known = {
            **{name: (_hash(word), "viewer") for name, word in (viewers or {}).items()},
            **{name: (_hash(word), "operator") for name, word in operators.items()},
        }
        self._limit = LoginLimit()

    async def __call__(self, request: Request) -> Viewer | None:
        """Return the viewer whose name and password are in the request."""
        given = read_basic(request.headers.get("authorization", ""))
        if given is None:
            return None
        name, password = given
        address = client_of(request)
        await self._limit.wait(address, name)
        expected_hash, role = self._known.get(name, (b"", "viewer"))
        if not hmac.compare_digest(_hash(password), expected_hash):
            self._limit.note_failure(address, name)
            return None
        return Viewer(name, "operator" if role == "operator" else "viewer")


def client_of(request: Request) -> str:
    """Return the client address of a request, as the server reports it."""
    return request.client.host if request.client else ""


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
