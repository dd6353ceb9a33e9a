"""Decides who may view tasks over HTTP and who may change them."""

import hmac
import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from duly.credentials import LoginLimit, TooManyTries, check_password, read_basic
from duly.errors import BadOption
from duly.host_names import LOOPBACK_HOSTS, check_hosts, host_name
from duly.integrations.fastapi.rejections import require_auth
from duly.limits import LOGIN_SECONDS

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_IN_PROCESS = "http.response.debug"
"""Set only by Starlette's TestClient inside this process. No request can set it."""

Pair = tuple[str, str]
Dependency = Callable[..., Any]


class TaskAuthBackend(ABC):
    """A base class that checks whether a name and a password belong together."""

    @abstractmethod
    def authenticate_user(self, username: str, password: str) -> bool:
        """Return whether they belong together. A subclass may define this as a coroutine."""


class _PasswordAuth(TaskAuthBackend):
    def __init__(self, pairs: Sequence[Pair]) -> None:
        if not pairs or not all(
            isinstance(pair, tuple) and len(pair) == 2 and all(p and type(p) is str for p in pair)  # noqa: PLR2004
            for pair in pairs
        ):
            raise BadOption(
                "auth must consist of pairs of a user and a password, both non-empty strings"
            )
        for user, password in pairs:
            check_password(user, password)
        self._pairs = [(user.encode(), password.encode()) for user, password in pairs]

    def authenticate_user(self, username: str, password: str) -> bool:
        # Compare all pairs, so that the duration reveals nothing about the matching one.
        matches = [
            hmac.compare_digest(user, username.encode())
            & hmac.compare_digest(known, password.encode())
            for user, known in self._pairs
        ]
        return any(matches)


def auth_dependency(
    auth: "Pair | Sequence[Pair] | TaskAuthBackend | Dependency | None",
    realm: str,
    hosts: Collection[str] | None = None,
) -> Dependency:
    """Return the dependency that admits requests and returns the caller.

    Without `auth`, every caller may view tasks under known host names, and none may change them.
    """
    who = _authenticate(auth, realm)
    allowed = check_hosts(hosts)
    if allowed is None and auth is not None:
        return who

    def check_host(request: Request) -> None:
        if allowed is None and is_in_process(request):
            return
        if host_name(request.headers.get("host", "")) not in (allowed or LOOPBACK_HOSTS):
            raise HTTPException(
                421,
                (
                    "this server does not answer requests for that host name; TaskAdmin(hosts=…) "
                    "can allow it"
                ),
            )

    # FastAPI resolves dependencies in the order of the parameters.
    async def user(
        _host: Annotated[None, Depends(check_host)],
        found: Annotated[object, Depends(who)],
    ) -> object:
        return found

    return user


def is_in_process(request: Request) -> bool:
    """Return whether a TestClient in this process made the request."""
    return _IN_PROCESS in request.scope.get("extensions", {})


def _authenticate(
    auth: "Pair | Sequence[Pair] | TaskAuthBackend | Dependency | None", realm: str
) -> Dependency:
    if auth is None:
        return _allow_reads
    if isinstance(auth, tuple):
        return _basic(_PasswordAuth([auth]), realm)
    if isinstance(auth, list):
        return _basic(_PasswordAuth(auth), realm)
    if isinstance(auth, TaskAuthBackend):
        return _basic(auth, realm)
    is_backend_class = isinstance(auth, type) and issubclass(auth, TaskAuthBackend)
    if callable(auth) and not is_backend_class:
        return require_auth(auth)
    raise BadOption(
        "auth must be a (user, password), a list of them, a TaskAuthBackend or a dependency of "
        f"FastAPI, not {'a class of backends' if is_backend_class else type(auth).__name__}"
    )


def _allow_reads(request: Request) -> str:
    # The address of a request proves nothing. With most proxies, all requests come from this
    # machine, and some proxies pass on any address that the client sends.
    if request.method not in _SAFE and not is_in_process(request):
        raise HTTPException(
            403,
            "without TaskAdmin(auth=…) tasks are read-only; if a proxy in front of this server "
            "checks the users, pass auth=lambda: 'anonymous'",
        )
    return "anonymous"


def _basic(backend: TaskAuthBackend, realm: str) -> Callable[[Request], Awaitable[str]]:
    limit = LoginLimit()
    shown = realm.encode("ascii", "replace").decode().replace('"', "'")
    challenge = {"WWW-Authenticate": f'Basic realm="{shown}", charset="UTF-8"'}

    async def user(request: Request) -> str:
        pair = read_basic(request.headers.get("authorization", ""))
        if pair is None or not await _is_right(backend, pair, limit, request):
            raise HTTPException(401, "the user name or the password is missing or wrong", challenge)
        return pair[0]

    return user


async def _is_right(
    backend: TaskAuthBackend, pair: Pair, limit: LoginLimit, request: Request
) -> bool:
    address = request.client.host if request.client else ""
    try:
        await limit.wait(address, pair[0])
        async with limit.slot(address):
            is_right = await _is_known(backend, pair)
            if not is_right:
                limit.note_failure(address, pair[0])
            return is_right
    except TooManyTries:
        wait = {"Retry-After": str(round(LOGIN_SECONDS))}
        raise HTTPException(429, "too many wrong attempts; wait a minute", wait) from None


async def _is_known(backend: TaskAuthBackend, pair: Pair) -> bool:
    # In a thread: a user's backend may query a database.
    answer: Any = await run_in_threadpool(backend.authenticate_user, *pair)
    # Await a coroutine's result: the coroutine object itself would count as a yes.
    return bool(await answer if inspect.isawaitable(answer) else answer)
