"""The dashboard as pages of a Django project, for its staff: `path("duly/", dashboard_urls())`.

The pages are those of `duly.dashboard`, an ASGI application. It runs on its own event loop, so that
WSGI and ASGI servers send the same responses, including streams.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import NoReverseMatch, URLPattern, re_path, reverse

from duly import Duly
from duly.integrations.django.app import DjangoDuly, scheduler_app
from duly.integrations.django.backend import backend_of, backends
from duly.integrations.django.project import apps_in, register_project_tasks
from duly.store.per_process import PerProcess

if TYPE_CHECKING:
    from duly.dashboard import Viewer

T = TypeVar("T")
Scope = dict[str, Any]

VIEWERS = ("duly.view_run", "duly.view_deadletter", "duly.view_schedule")
OPERATORS = ("duly.change_run", "duly.change_deadletter", "duly.change_schedule")
"""The permissions that staff need to view pages, and to perform operator actions."""
_VIEWER = "duly.viewer"
_NAMESPACE = "duly-dashboard"
_STREAM = "text/event-stream"


def dashboard_urls(
    backend: str = "default",
    *,
    write: bool = True,
    show_arguments: bool = True,
    title: str = "duly",
) -> tuple[list[URLPattern], str, str]:
    """Return the dashboard of a backend's database, for a project's `urlpatterns`.

    Staff with the permissions of `VIEWERS` may view it, with their session of Django's admin.
    Actions need the permissions of `OPERATORS`, and `write`.
    """
    options = {"write": write, "show_arguments": show_arguments, "title": title}
    view = _DashboardView(backend, options)
    return [re_path(r"^(?P<path>.*)$", view, name="page")], _NAMESPACE, _NAMESPACE


class _DashboardView:
    """A Django view that forwards requests to the dashboard together with the viewer."""

    csrf_exempt = True
    """Every form of the dashboard has its own token."""

    @property
    def _non_atomic_requests(self) -> set[str]:
        # The dashboard writes on duly's own connections. They would deadlock with the transaction
        # that ATOMIC_REQUESTS opens around a view.
        return set(connections)

    def __init__(self, backend: str, options: dict[str, Any]) -> None:
        from duly.dashboard import dashboard  # noqa: PLC0415 - from an extra

        self._make: Callable[[Duly], Any] = partial(dashboard, auth=_auth_hook, **options)
        self._backend = backend
        self._pages: Any = None
        self.app: Duly | None = None
        """The application that the dashboard shows, set at the first request."""
        self.exchanges: set[_AsgiBridge] = set()
        """The requests in progress."""
        self._mutex = threading.Lock()
        connection_created.connect(self._close_for_test_databases)

    def __call__(self, request: HttpRequest, path: str) -> HttpResponseBase:
        request.get_host()  # Django rejects host names that it does not serve.
        if not hasattr(request, "user"):
            raise ImproperlyConfigured(
                "the dashboard needs staff users, but this project has no sign-in: add "
                "django.contrib.sessions, django.contrib.auth, with SessionMiddleware and "
                "AuthenticationMiddleware"
            )
        viewer = _viewer(request)
        is_public = path.startswith("static/")
        if viewer is None and not is_public and not request.user.is_authenticated:
            return _to_login(request)
        scope = _scope(request, path, viewer)
        exchange = _AsgiBridge(self._found(), scope, request.body, self.exchanges)
        return exchange.answer(is_async=isinstance(request, ASGIRequest))

    def _found(self) -> Any:  # noqa: ANN401 - an ASGI application
        with self._mutex:
            if self._pages is None:
                app = _app(self._backend)
                self._pages = self._make(app)
                self.app = app
            return self._pages

    def _close_for_test_databases(self, connection: Any, **_signal: Any) -> None:  # noqa: ANN401 - Django's
        """Close connections as `close_own_connections` does.

        First end the requests that would open them again: live pages and bulk actions.
        """
        if connection.alias == NO_DB_ALIAS and isinstance(self.app, DjangoDuly):
            for exchange in tuple(self.exchanges):
                exchange.end()
            self._pages.wait_for_bulk_actions()
            self.app.close()


async def _auth_hook(request: Any) -> "Viewer | None":  # noqa: ANN401 - Starlette's
    found: Viewer | None = request.scope[_VIEWER]
    return found


def _viewer(request: HttpRequest) -> "Viewer | None":
    from duly.dashboard import Viewer  # noqa: PLC0415 - from an extra

    user = request.user
    # A user who may change something may also view it, as in Django's admin.
    sees_all = all(
        user.has_perm(view) or user.has_perm(change)
        for view, change in zip(VIEWERS, OPERATORS, strict=True)
    )
    if not (user.is_active and user.is_staff and sees_all):
        return None
    return Viewer(user.get_username(), "operator" if user.has_perms(OPERATORS) else "viewer")


def _to_login(request: HttpRequest) -> HttpResponse:
    from django.contrib.auth.views import redirect_to_login  # noqa: PLC0415 - needs models

    try:
        address = reverse("admin:login")
    except NoReverseMatch:
        address = str(settings.LOGIN_URL)
    return redirect_to_login(request.get_full_path(), address)


def _app(backend: str) -> Duly:
    """Return an application with all tasks of a database, on its own connections."""
    register_project_tasks()
    found = backend_of(backend).app if backends() else scheduler_app()
    if not isinstance(found, DjangoDuly):
        return found
    # Pages are rendered on threads whose connections Django would never close.
    apart = DjangoDuly(found.database)
    apart.runs_tasks = True
    for app in apps_in(found.database):
        for definition in app.registry.definitions():
            apart.registry.add(definition)
    return apart


def _scope(request: HttpRequest, path: str, viewer: "Viewer | None") -> Scope:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in request.headers.items()
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path.removesuffix(path).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers,
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        _VIEWER: viewer,
    }


class _AsgiBridge:
    """One request to an ASGI application and its response."""

    def __init__(
        self,
        pages: Any,  # noqa: ANN401 - as above
        scope: Scope,
        body: bytes,
        under_way: "set[_AsgiBridge]",
    ) -> None:
        self._pages = pages
        self._under_way = under_way
        self._scope = scope
        self._body = [body]
        self._loop = LOOP.get()

    def answer(self, *, is_async: bool) -> HttpResponseBase:
        """Return the response, whole or as a stream."""
        start = self._loop.run(self._begin())
        kind = dict(start["headers"]).get(b"content-type", b"").decode("latin-1")
        answer: HttpResponseBase
        if kind.startswith(_STREAM):
            parts = self._parts_on_a_loop() if is_async else self._parts()
            answer = StreamingHttpResponse(parts, status=start["status"])
        else:
            answer = HttpResponse(b"".join(self._parts()), status=start["status"])
        del answer["Content-Type"]
        for name, value in start["headers"]:
            if name == b"connection":
                continue  # The connection belongs to Django's server, which has read the request.
            text = value.decode("latin-1")
            if name == b"set-cookie":
                answer.cookies.load(text)
            else:
                answer[name.decode("latin-1")] = text
        return answer

    async def _begin(self) -> dict[str, Any]:
        self._response_messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        self._is_over = asyncio.Event()
        self._task = asyncio.create_task(self._run())
        # An error has been answered already, or is raised by `_next`.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._next()

    async def _next(self) -> dict[str, Any]:
        saying = asyncio.create_task(self._response_messages.get())
        await asyncio.wait({saying, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if saying.done():
            return saying.result()
        saying.cancel()
        await self._task
        return {}

    async def _run(self) -> None:
        self._under_way.add(self)
        try:
            await self._pages(self._scope, self._receive, self._response_messages.put)
        finally:
            self._is_over.set()
            self._under_way.discard(self)

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        await self._is_over.wait()
        return {"type": "http.disconnect"}

    def end(self) -> None:
        """End the response as if its client had disconnected, and wait until its task has ended."""
        # A forked process has inherited its parent's responses and must not end them.
        if self._loop is LOOP.get():
            self._loop.run(self._disconnect())

    async def _disconnect(self) -> None:
        self._is_over.set()
        await asyncio.wait({self._task})

    async def _end(self) -> None:
        self._is_over.set()
        self._task.cancel()

    def _parts(self) -> Iterator[bytes]:
        try:
            more = True
            while more:
                part = self._loop.run(self._next())
                more = part.get("more_body", False)
                yield part.get("body", b"")
        finally:
            # Do not wait: the loop's thread may have stopped with the interpreter.
            self._loop.start_task(self._end())

    async def _parts_on_a_loop(self) -> AsyncIterator[bytes]:
        try:
            more = True
            while more:
                part = await asyncio.wrap_future(self._loop.start_task(self._next()))
                more = part.get("more_body", False)
                yield part.get("body", b"")
        finally:
            self._loop.start_task(self._end())


class _LoopThread:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="duly-dashboard", daemon=True)
        thread.start()

    def start_task(self, what: Any) -> Any:  # noqa: ANN401 - a coroutine and its future
        """Start a coroutine on the loop, and return the future of its result."""
        return asyncio.run_coroutine_threadsafe(what, self._loop)

    def run(self, what: Awaitable[T]) -> T:
        """Run a coroutine on the loop, and wait for its result."""
        found: T = self.start_task(what).result()
        return found

    def close(self) -> None:
        """Stop the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)


LOOP = PerProcess(_LoopThread)
