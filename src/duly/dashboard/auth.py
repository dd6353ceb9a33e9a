"""Who may look at the dashboard, and who may act in it."""

import hashlib
import hmac
import inspect
import math
import string
from base64 import b64decode
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from duly.clock import monotonic, wall_seconds
from duly.core.shapes import signature_of
from duly.errors import BadOption
from duly.limits import LOGIN_FAILURES, LOGIN_SECONDS, SESSION_SECONDS, TOKEN_BITS

COOKIE = "duly_session"
_FEWEST_SIGNS = 8


class Viewer(NamedTuple):
    """Somebody who may look; an operator may act, too, where the dashboard allows acts at all."""

    name: str
    role: Literal["viewer", "operator"] = "operator"


Answer = Viewer | str | bool | None
Auth = Callable[[Request], "Answer | Awaitable[Answer]"]
"""Says who asks: a Viewer, or the name of an operator. None, "" and False let nobody in."""


def check_auth(auth: Auth | None) -> None:
    """Refuse what is no function of a request: nobody would know whom it lets in."""
    if auth is None:
        return
    if not callable(auth):
        raise BadOption(f"auth must be a function of the request, not {auth!r:.80}")
    try:
        parameters = signature_of(auth).parameters
    except ValueError:  # One in C, which says nothing of itself.
        return
    for name, parameter in parameters.items():
        if type(parameter.default).__name__ == "Depends" or "Depends(" in str(parameter.annotation):
            raise BadOption(
                f"auth is called with the request, and its parameter {name!r} is for FastAPI to "
                f"fill in: read the request itself, or serve the dashboard by TaskAdmin(…, auth=…)"
            )


async def ask(auth: Auth, request: Request) -> Viewer | None:
    """Return who asks, whatever kind of function says so."""
    if inspect.iscoroutinefunction(auth) or inspect.iscoroutinefunction(
        getattr(auth, "__call__", None)  # noqa: B004 - a class may have a coroutine there
    ):
        answer = auth(request)
    else:
        answer = await run_in_threadpool(auth, request)
    if inspect.isawaitable(answer):
        answer = await answer
    if isinstance(answer, Viewer):
        return answer if answer.name else None
    if isinstance(answer, str) and answer:
        return Viewer(answer)
    return Viewer("anonymous") if answer is True else None


class TooManyTries(Exception):
    """Wrong credentials came in faster than people type them."""


class _Tries:
    """Counts failures, so that nobody can try out what the secret is."""

    def __init__(self) -> None:
        self._failed_at: deque[float] = deque(maxlen=LOGIN_FAILURES)

    def check(self) -> None:
        """Refuse to look at another try for a while."""
        is_full = len(self._failed_at) == LOGIN_FAILURES
        if is_full and monotonic() - self._failed_at[0] < LOGIN_SECONDS:
            raise TooManyTries

    def note(self, *, ok: bool) -> bool:
        if not ok:
            self._failed_at.append(monotonic())
        return ok


_LOWER, _UPPER, _DIGITS = string.ascii_lowercase, string.ascii_uppercase, string.digits
_ALPHABETS = (
    *(_DIGITS, f"{_DIGITS}abcdef", f"{_DIGITS}ABCDEF", _LOWER, _UPPER),
    *(_LOWER + _DIGITS, _UPPER + _DIGITS, _LOWER + _UPPER + _DIGITS),
)


def bits_of(token: str) -> float:
    """Return how many bits of chance a token has at most, by the signs that it is made of.

    What repeats a few signs, as no generator does, has none.
    """
    signs = set(token)
    if len(signs) < _FEWEST_SIGNS:
        return 0.0
    size = min((len(known) for known in _ALPHABETS if signs <= set(known)), default=64)
    return len(token) * math.log2(size)


class TokenAuth:
    """One token opens the dashboard: typed into its page, or as `Authorization: Bearer …`."""

    def __init__(self, token: str, *, name: str = "token") -> None:
        if bits_of(token) < TOKEN_BITS:
            raise BadOption(
                f"a token has at least {TOKEN_BITS} bits that nobody can guess; "
                f"`python -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
            )
        # What is compared and what signs sessions is a hash; the token itself is not kept.
        self._hash = _hash(token)
        self._name = name
        self._tries = _Tries()

    def __call__(self, request: Request) -> Viewer | None:
        """Return the one who has the token, or a session that it opened."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return Viewer(self._name) if self.accepts(token.strip()) else None
        session = request.cookies.get(COOKIE, "")
        return Viewer(self._name) if self._is_session(session) else None

    def accepts(self, token: str) -> bool:
        """Say whether that is the token."""
        self._tries.check()
        return self._tries.note(ok=hmac.compare_digest(_hash(token), self._hash))

    def new_session(self) -> str:
        """Return what the browser keeps instead of the token."""
        until = str(int(wall_seconds()) + SESSION_SECONDS)
        return f"{until}.{self._signed(until)}"

    def _is_session(self, text: str) -> bool:
        until, _, signature = text.partition(".")
        is_ours = hmac.compare_digest(signature.encode(), self._signed(until).encode())
        return is_ours and until.isdecimal() and int(until) > wall_seconds()

    def _signed(self, until: str) -> str:
        return hmac.new(self._hash, f"session {until}".encode(), hashlib.sha256).hexdigest()


class BasicAuth:
    """Names and passwords; those in `viewers` may only look."""

    challenge = 'Basic realm="duly", charset="UTF-8"'
    """Makes browsers ask for them."""

    def __init__(
        self, operators: Mapping[str, str], *, viewers: Mapping[str, str] | None = None
    ) -> None:
        self._known = {
            **{name: (_hash(word), "viewer") for name, word in (viewers or {}).items()},
            **{name: (_hash(word), "operator") for name, word in operators.items()},
        }
        self._tries = _Tries()

    def __call__(self, request: Request) -> Viewer | None:
        """Return whose name and password came with the request."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        self._tries.check()
        try:
            name, _, password = b64decode(given, validate=True).decode().partition(":")
        except ValueError:
            name = password = ""
        known, role = self._known.get(name, (b"", "viewer"))
        ok = hmac.compare_digest(_hash(password), known)
        if not self._tries.note(ok=ok):
            return None
        return Viewer(name, "operator" if role == "operator" else "viewer")


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
