"""Checks every request before a page receives it, and adds headers to every response."""

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duly.clock import new_secret
from duly.credentials import TooManyTries
from duly.dashboard.auth import (
    NO_NAME,
    Auth,
    TokenAuth,
    Viewer,
    client_of,
    rate_limit_identity,
    viewer_of,
)
from duly.dashboard.request_body import RefusedBody, closes_connection, read_body
from duly.dashboard.viewer_limit import RETRY_SOON, TooManyReads
from duly.errors import StoreUnavailable
from duly.host_names import LOOPBACK_HOSTS, check_hosts, host_name
from duly.limits import LOGIN_SECONDS

CSRF_COOKIE = "duly_csrf"
CSRF_FIELD = "csrf"
CSRF_HEADER = "x-duly-csrf"
TOO_MANY_TRIES = "Too many wrong attempts; wait a minute."
RETRY_AFTER = {"Retry-After": str(round(LOGIN_SECONDS))}
_SAFE = frozenset({"GET", "HEAD"})
_SECRET = re.compile(r"[0-9a-f]{32,128}")
_BROKEN = "The dashboard could not identify you. See the log of its process."
_NO_DATABASE = "The database does not answer. Reload to try again."
_IN_PROCESS = "http.response.debug"
"""An ASGI extension that only Starlette's TestClient offers. No request can claim it."""
_FORWARDED = frozenset(
    {"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
)
"""Headers that proxies set, in addition to all that start with x-forwarded-."""
_NOT_LOCAL = (
    "This dashboard was mounted without auth=, so it answers only requests from its own machine. "
    "Pass dashboard(…, auth=…) to serve it to others."
)

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class SecurityMiddleware:
    """Passes requests on to the pages, or responds with the reason for a refusal."""

    def __init__(
        self,
        pages: ASGIApp,
        *,
        auth: Auth,
        is_local_only: bool,
        hosts: Collection[str] | None,
        has_ended: Callable[[Request, str], Awaitable[bool]],
        closed: Callable[[Request, str, int], Response],
        wait_for_bulk_actions: Callable[[], None],
    ) -> None:
        self._pages = pages
        self._auth = auth
        self._is_local_only = is_local_only
        # A host name of another site may resolve to this machine. Only the Host header shows it.
        self._hosts = LOOPBACK_HOSTS if hosts is None and is_local_only else check_hosts(hosts)
        self._has_ended = has_ended
        self._closed = closed
        self.wait_for_bulk_actions = wait_for_bulk_actions
        """Waits until this process works on no bulk action."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._pages(scope, receive, send)
            return
        body = await read_body(Request(scope, receive))
        unread = body if isinstance(body, RefusedBody) else None
        receive = receive if isinstance(body, RefusedBody) else body
        request = Request(scope, receive)
        closes = unread is not None and closes_connection(scope)
        answer = _with_headers(send, request, closes=closes)
        try:
            refused = await self._refuse(request, unread)
        except TooManyTries:
            refused = self._closed(request, TOO_MANY_TRIES, 429)
            refused.headers.update(RETRY_AFTER)
        except TooManyReads as error:
            refused = self._closed(request, str(error), 429)
            refused.headers.update(RETRY_SOON)
        except StoreUnavailable:
            refused = self._closed(request, _NO_DATABASE, 503)
        except Exception:
            # The server logs the error of the auth hook. The client must not see it.
            await self._closed(request, _BROKEN, 500)(scope, receive, answer)
            raise
        await (refused or self._pages)(scope, receive, answer)

    async def _refuse(self, request: Request, unread: RefusedBody | None) -> Response | None:
        """Return the response to a refused request, or None if the request may pass."""
        host = host_name(request.headers.get("host", ""))
        if self._hosts is not None and host not in self._hosts:
            return PlainTextResponse(
                "This dashboard does not answer requests for that host name. Its operator can "
                "allow the name with --allow-host, or hosts= where the dashboard is mounted.\n",
                421,
            )
        if unread is not None:
            return self._closed(request, unread.words, unread.status)
        path = _path_in(request)
        if path.startswith("/static/"):
            return None if request.method in _SAFE else PlainTextResponse("GET only\n", 405)
        known = request.cookies.get(CSRF_COOKIE, "")
        request.state.csrf = known if _SECRET.fullmatch(known) else new_secret()
        if self._is_local_only and not _is_local(request):
            return self._closed(request, _NOT_LOCAL, 403)
        if request.method not in _SAFE and (wrong := await _cross_site_problem(request)):
            return self._closed(request, wrong, 403)
        if path == "/login":
            return None
        viewer = await self._viewer(request)
        if viewer is None:
            return self._ask_for_credentials(request)
        self._remember_viewer(request, viewer)
        return None

    async def _viewer(self, request: Request) -> Viewer | None:
        if self._is_local_only and _is_in_process(request):
            return Viewer(NO_NAME)
        if isinstance(self._auth, TokenAuth):
            session = self._auth.session_of(request)
            if session is not None:
                # The signature is valid, so the database read counts as a read of that viewer.
                self._remember_viewer(request, self._auth.viewer)
                if not await self._has_ended(request, session):
                    return self._auth.viewer
        return await viewer_of(self._auth, request)

    def _remember_viewer(self, request: Request, viewer: Viewer) -> None:
        request.state.viewer = viewer
        request.state.rate_limit_identity = rate_limit_identity(self._auth, viewer, request)

    def _ask_for_credentials(self, request: Request) -> Response:
        if isinstance(self._auth, TokenAuth) and "authorization" not in request.headers:
            if request.method in _SAFE and "text/html" in request.headers.get("accept", ""):
                return RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
            return PlainTextResponse("Sign in first.\n", 401)
        challenge = getattr(self._auth, "challenge", None)
        if challenge is not None:
            headers = {"WWW-Authenticate": challenge}
            return PlainTextResponse("Sign in first.\n", 401, headers=headers)
        return self._closed(request, "You may not see this dashboard.", 403)


async def _cross_site_problem(request: Request) -> str | None:
    """Return why a write did not come from one of our own pages, or None if it did."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return "This request came from another site."
    # Browsers without referrers send null as the origin of our forms. Then the token decides.
    origin = request.headers.get("origin", "null")
    if origin != "null" and origin.partition("://")[2] != request.headers.get("host"):
        return "This request came from another site."
    given = request.headers.get(CSRF_HEADER)
    if given is None:
        kind = request.headers.get("content-type", "").partition(";")[0]
        if kind not in {"application/x-www-form-urlencoded", "multipart/form-data"}:
            return "This form does not belong to this dashboard."
        try:
            form = await request.form(max_files=0, max_fields=1_000)
        except (HTTPException, MultiPartException, KeyError, ValueError):
            return "This form does not belong to this dashboard."
        given = str(form.get(CSRF_FIELD, ""))
    if not hmac.compare_digest(given.encode("utf-8", "replace"), request.state.csrf.encode()):
        return (
            "This form is too old, or does not belong to this dashboard. Go back, reload the page, "
            "and try again."
        )
    return None


def _with_headers(send: Send, request: Request, *, closes: bool) -> Send:
    """Return a `send` that adds the headers of every response, including errors."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if closes:
                headers["Connection"] = "close"
            csrf = getattr(request.state, "csrf", None)
            if csrf is not None and request.cookies.get(CSRF_COOKIE) != csrf:
                headers.append("Set-Cookie", cookie(request, CSRF_COOKIE, csrf))
        await send(message)

    return answer


def cookie(request: Request, name: str, value: str, *, seconds: int | None = None) -> str:
    """Return a cookie that other sites cannot make a browser send and scripts cannot read."""
    path = request.scope.get("root_path", "") or "/"
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Strict"]
    if seconds is not None:
        parts.append(f"Max-Age={seconds}")
    if request.url.scheme == "https":
        parts.append("Secure")
    return "; ".join(parts)


def _path_in(request: Request) -> str:
    """Return the path relative to the dashboard's root."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


def _is_local(request: Request) -> bool:
    """Return whether a request comes from this machine and not through a proxy on it."""
    if any(name in _FORWARDED or name.startswith("x-forwarded-") for name in request.headers):
        return False
    try:
        return _is_in_process(request) or ipaddress.ip_address(client_of(request)).is_loopback
    except ValueError:
        return False


def _is_in_process(request: Request) -> bool:
    """Return whether a TestClient in this process made the request under its own address."""
    return _IN_PROCESS in request.scope.get("extensions", {}) and client_of(request) == "testclient"
