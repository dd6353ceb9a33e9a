"""The ASGI application: which address shows which page, and which form does which act."""

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route
from starlette.types import ASGIApp

from duly.clock import new_secret
from duly.credentials import TooManyTries
from duly.dashboard import json_api, searching, words
from duly.dashboard.acting import Acts, name_of
from duly.dashboard.assets import asset_address, compressed_pages, serve_asset
from duly.dashboard.auth import COOKIE, Auth, TokenAuth, Viewer, check_auth
from duly.dashboard.desk import Desk
from duly.dashboard.guarding import CSRF_FIELD, RETRY_AFTER, TOO_MANY_TRIES, Guard, cookie
from duly.dashboard.live import Streams
from duly.dashboard.pages import Elsewhere, NothingHere, Shown, asking, audit, dead, fleet, overview
from duly.dashboard.pages import runs as run_pages
from duly.dashboard.pages import schedules as schedule_pages
from duly.dashboard.protocols import Application
from duly.errors import (
    BadOption,
    DulyError,
    ReadTooSlow,
    RunNotFound,
    ScheduleNotFound,
    StoreUnavailable,
)
from duly.limits import PAGE_SECONDS, SESSION_SECONDS
from duly.observe.logs import log_dashboard_link
from duly.store.bounded import within
from duly.version import VERSION

HERE = Path(__file__).parent
_STILL_SIGNED_IN = "You are still signed in: go back, and sign out again."
_IN_DOUBT = "Whether it was done is not known: look before you repeat it."
NAVIGATION = (
    ("", "Overview", "o"),
    ("runs", "Runs", "r"),
    ("dead", "Dead letters", "d"),
    ("schedules", "Schedules", "s"),
    ("queues", "Queues", "q"),
    ("workers", "Workers", "w"),
    ("tasks", "Tasks", "t"),
    ("audit", "Audit", "a"),
)
"""Address, name, and the key that leads there behind g."""

Page = Callable[[Desk, Request], Shown | Elsewhere]


def dashboard(
    app: Application,
    *,
    auth: Auth | None = None,
    write: bool = False,
    hosts: Collection[str] | None = None,
    show_arguments: bool = True,
    title: str = "duly",
) -> ASGIApp:
    """Return the dashboard of an application, to be mounted or served.

    `auth` returns who asks. Without it the dashboard answers this machine alone, under its own
    name, and asks for a token: its login page logs a link with it. Without `write`, which needs
    `auth`, nobody can change anything. `hosts` are the names that it answers to. Arguments that a
    task redacts are never shown, and none are without `show_arguments`.
    """
    check_auth(auth)
    if write and auth is None:
        raise BadOption("dashboard(…, write=True) needs auth=: say who may act")
    desk = Desk(app, shows_arguments=show_arguments, writes=write)
    return _Dashboard(desk, auth, hosts, title).guarded


class _Dashboard:
    """The pages of one application."""

    def __init__(
        self, desk: Desk, auth: Auth | None, hosts: Collection[str] | None, title: str
    ) -> None:
        self._desk = desk
        self._logged_token = new_secret() if auth is None else None
        self._auth = auth or TokenAuth(self._logged_token or "")
        self._title = title
        self._acts = Acts(desk)
        self._streams = Streams()
        self._templates = _environment()
        pages = Starlette(
            routes=self._routes(),
            exception_handlers={HTTPException: self._not_found, Exception: self._broken},
        )
        self.guarded = Guard(
            compressed_pages(pages),
            auth=self._auth,
            is_local_only=auth is None,
            hosts=hosts,
            has_ended=self._has_ended,
            closed=self.closed,
            wait_for_acts=self._acts.many.work.wait,
        )

    def _routes(self) -> list[Route]:
        page, act = self._page, self._act
        acts = self._acts
        return [
            Route("/", page(overview.overview)),
            Route("/runs", page(run_pages.runs)),
            Route("/runs/{run_id}", page(run_pages.run)),
            Route("/runs/{run_id}/edit", page(run_pages.edit, live=False)),
            Route("/runs/{run_id}/edit", act(acts.edit), methods=["POST"]),
            Route("/runs/{run_id}/cancel", act(acts.cancel), methods=["POST"]),
            Route("/runs/{run_id}/retry", act(acts.retry), methods=["POST"]),
            Route("/runs/{run_id}/resolve", act(acts.resolve), methods=["POST"]),
            Route("/runs/{run_id}/discard", act(acts.discard), methods=["POST"]),
            Route("/dead", page(dead.dead)),
            Route("/dead/group", page(dead.group)),
            Route("/dead/export", self._export),
            Route("/dead/confirm", act(acts.many.confirm), methods=["POST"]),
            Route("/dead/act", act(acts.many.act), methods=["POST"]),
            Route("/bulk/{act_id}", page(acts.many.shown)),
            Route("/schedules", page(schedule_pages.schedules)),
            Route("/schedules/{name:path}/{verb}", act(acts.schedule), methods=["POST"]),
            Route("/schedules/{name:path}", page(schedule_pages.schedule)),
            Route("/queues", page(fleet.queues)),
            Route("/queues/{name:path}/{verb}", act(acts.queue), methods=["POST"]),
            Route("/workers", page(fleet.workers)),
            Route("/tasks", page(fleet.tasks)),
            Route("/audit", page(audit.audit)),
            Route("/ask", page(asking.ask, live=False)),
            *json_api.routes(self._desk),
            Route("/metrics", self._metrics),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{path:path}", serve_asset),
        ]

    # -- pages --

    def _page(self, view: Page, *, live: bool = True) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if live and "text/event-stream" in request.headers.get("accept", ""):
                viewer = name_of(request.state.viewer)
                render = partial(self._fragment, view, request)
                return self._streams.answer(request, render, viewer=viewer)
            return await run_in_threadpool(self._whole, view, request, live)

        return endpoint

    def _whole(self, view: Page, request: Request, live: bool) -> Response:  # noqa: FBT001
        try:
            with within(PAGE_SECONDS):
                shown = dead.with_count(view(self._desk, request), self._desk.store)
            self._acts.many.work.look()
        except NothingHere as nothing:
            return self._message(request, "Not found", str(nothing), 404)
        except BadOption as error:
            return self._message(request, "That could not be done", str(error), 409)
        except StoreUnavailable as error:
            return self._unavailable(request, error)
        if isinstance(shown, Elsewhere):
            return self._redirect(request, shown)
        html = self._render(request, shown, "base.html", live=live)
        return HTMLResponse(html, shown.status)

    async def _fragment(self, view: Page, request: Request) -> str:
        def render() -> str:
            try:
                with within(PAGE_SECONDS):
                    shown = dead.with_count(view(self._desk, request), self._desk.store)
                self._acts.many.work.look()
            except NothingHere as error:
                shown = Shown("message.html", {"heading": "Not found", "words": str(error)})
            if isinstance(shown, Elsewhere):
                return ""
            return self._render(request, shown, "fragment.html", live=True)

        return await run_in_threadpool(render)

    def _export(self, request: Request) -> Response:
        try:
            which = dead.chosen(request, self._desk.store.now())
        except NothingHere as nothing:
            return self._message(request, "Not found", str(nothing), 404)
        headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
        lines = json_api.exported(self._desk, which)
        return StreamingResponse(lines, headers=headers, media_type="application/jsonl")

    # -- acts --

    def _act(
        self, act: Callable[[Request, Any, str], Elsewhere | Shown]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            viewer: Viewer = request.state.viewer
            if not self._may_act(viewer):
                words_ = "This dashboard is read-only" + (
                    " for you." if self._desk.writes else "; it was started without --write."
                )
                return self._message(request, "Not allowed", words_, 403)
            form = await request.form(max_files=0, max_fields=1_000)
            return await run_in_threadpool(carry_out, request, form, name_of(viewer))

        def carry_out(request: Request, form: Any, who: str) -> Response:  # noqa: ANN401
            try:
                with within(PAGE_SECONDS):
                    done = dead.with_count(act(request, form, who), self._desk.store)
            except (NothingHere, RunNotFound, ScheduleNotFound) as nothing:
                return self._message(request, "Not found", str(nothing), 404)
            except ReadTooSlow as error:
                return self._unavailable(request, error)
            except StoreUnavailable as error:
                # A reload would send the form again, and what was asked for may have been done.
                return self._unavailable(request, error, then=_IN_DOUBT)
            except DulyError as error:
                return self._message(request, "That could not be done", str(error), 409)
            if isinstance(done, Elsewhere):
                return self._redirect(request, done)
            html = self._render(request, done, "base.html", live=False)
            return HTMLResponse(html, done.status)

        return endpoint

    def _may_act(self, viewer: Viewer | None) -> bool:
        return self._desk.writes and viewer is not None and viewer.role == "operator"

    # -- signing in --

    async def _login(self, request: Request) -> Response:
        if not isinstance(self._auth, TokenAuth):
            return self._redirect(request, Elsewhere("/"))
        wrong, status, headers = None, 200, {}
        if request.method == "POST":
            token = str((await request.form()).get("token", ""))
            try:
                if await self._auth.accepts(token.strip(), request):
                    answer = self._redirect(request, Elsewhere("/"))
                    session = self._auth.new_session()
                    set_cookie = cookie(request, COOKIE, session, seconds=SESSION_SECONDS)
                    answer.headers.append("Set-Cookie", set_cookie)
                    return answer
                wrong, status = "That is not the token.", 401
            except TooManyTries:
                wrong, status, headers = TOO_MANY_TRIES, 429, RETRY_AFTER
        elif self._logged_token is not None:
            # The link needs an address, and only a request tells which one it is.
            place = f"{request.url.scheme}://{request.headers['host']}{_root(request)}"
            log_dashboard_link(f"{place}/login#{self._logged_token}")
        shown = Shown("login.html", {"wrong": wrong, "is_logged": self._logged_token is not None})
        html = self._render(request, shown, "bare.html", live=False)
        return HTMLResponse(html, status, headers)

    async def _logout(self, request: Request) -> Response:
        session = self._auth.session_of(request) if isinstance(self._auth, TokenAuth) else None
        if session is not None:
            end = partial(self._desk.sessions.end, session, actor=name_of(request.state.viewer))
            try:
                await run_in_threadpool(end)
            except StoreUnavailable as error:
                return self._unavailable(request, error, then=_STILL_SIGNED_IN)
        answer = self._redirect(request, Elsewhere("/login"))
        answer.headers.append("Set-Cookie", cookie(request, COOKIE, "", seconds=0))
        return answer

    def _has_ended(self, session: str) -> bool:
        with within(PAGE_SECONDS):
            return self._desk.sessions.has_ended(session)

    async def _metrics(self, _request: Request) -> Response:
        try:
            # Of an extra of its own, which those who do not ask need not have.
            from duly.observe.metrics import CONTENT_TYPE, exposition  # noqa: PLC0415
        except ModuleNotFoundError:
            return PlainTextResponse("Metrics need: pip install 'duly[metrics]'\n", 501)

        def expose() -> Response:
            try:
                with within(PAGE_SECONDS):
                    text = exposition(self._desk)
            except StoreUnavailable as error:
                return PlainTextResponse(f"{error}\n", 503)
            return Response(text, headers={"Content-Type": CONTENT_TYPE})

        return await run_in_threadpool(expose)

    # -- answers --

    def closed(self, request: Request, why: str, status: int) -> Response:
        """Answer somebody who may not come in."""
        shown = Shown("message.html", {"heading": "Closed", "words": why})
        html = self._render(request, shown, "bare.html", live=False)
        return HTMLResponse(html, status)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if request.url.path.rpartition(".")[2] in {"js", "css", "svg"}:
            return PlainTextResponse("Not found\n", status)
        heading = "Not found" if status == 404 else "Not possible"  # noqa: PLR2004
        say = "There is no such page. The navigation leads to all there are."
        return self._message(request, heading, say, status)

    async def _broken(self, request: Request, _error: Exception) -> Response:
        say = "The dashboard met an error it does not know. The log of its process has it."
        return self._message(request, "Something went wrong", say, 500)

    def _unavailable(
        self, request: Request, error: StoreUnavailable, *, then: str = "Reload to try again."
    ) -> Response:
        is_slow = isinstance(error, ReadTooSlow)
        heading = "This took too long" if is_slow else "The database does not answer"
        return self._message(request, heading, f"{_sentence(error)} {then}", 503)

    def _message(self, request: Request, heading: str, say: str, status: int) -> Response:
        shown = Shown("message.html", {"heading": heading, "words": say})
        html = self._render(request, shown, "base.html", live=False)
        return HTMLResponse(html, status)

    def _redirect(self, request: Request, where: Elsewhere) -> RedirectResponse:
        return RedirectResponse(_root(request) + quote(where.path, safe="/?=&%:"), 303)

    def _render(self, request: Request, shown: Shown, layout: str, *, live: bool) -> str:
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        root = _root(request)
        path = request.scope["path"]
        path = path.removeprefix(request.scope.get("root_path", "")) if root else path
        context = {
            "layout": layout,
            "root": root,
            "title": self._title,
            "version": VERSION,
            "navigation": NAVIGATION,
            "here": path.strip("/").partition("/")[0],
            "address": root + path + (f"?{request.url.query}" if request.url.query else ""),
            "viewer": viewer,
            "may_act": self._may_act(viewer),
            "can_sign_out": isinstance(self._auth, TokenAuth),
            "csrf": getattr(request.state, "csrf", ""),
            "csrf_field": CSRF_FIELD,
            "live": live,
            "dead": None,
        }
        return self._templates.get_template(shown.template).render(context | shown.context)


def _root(request: Request) -> str:
    """Return the path under which the dashboard is mounted, behind a proxy's prefix too."""
    root: str = request.scope.get("root_path", "")
    return quote(root.rstrip("/"))


def _sentence(error: Exception) -> str:
    words = str(error)
    return f"{words[:1].upper()}{words[1:]}."


def _environment() -> Environment:
    # Everything is escaped, whatever a template is called.
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": words.iso,
        "exact": words.exact,
        "ago": words.ago,
        "took": words.length,
        "coarse": words.coarse,
        "number": words.count,
        "dead_number": words.count_dead,
        "short_task": words.short_task,
        "pretty": words.pretty,
    }
    environment.globals |= {"asset": asset_address, "percent": words.percent, "query": _query}
    environment.globals |= {"term": searching.term, "tag_term": searching.tag_term}
    return environment


def _query(**parameters: str | None) -> str:
    """Return the part of an address behind its question mark."""
    return urlencode({name: value for name, value in parameters.items() if value})
