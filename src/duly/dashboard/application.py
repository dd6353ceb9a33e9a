"""The ASGI application: routes addresses to pages, and forms to operator actions."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from duly.clock import new_secret
from duly.credentials import TooManyTries
from duly.dashboard import json_api
from duly.dashboard.actions import OperatorActions, actor_of
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.assets import compressed_pages, serve_asset
from duly.dashboard.auth import COOKIE, Auth, TokenAuth, Viewer, check_auth
from duly.dashboard.live import LivePages
from duly.dashboard.pages import (
    PageContent,
    PageNotFound,
    PageRedirect,
    audit,
    confirmation,
    dead,
    fleet,
    overview,
)
from duly.dashboard.pages import runs as run_pages
from duly.dashboard.pages import schedules as schedule_pages
from duly.dashboard.protocols import Application
from duly.dashboard.responses import ResponseFactory, root_of
from duly.dashboard.security import RETRY_AFTER, TOO_MANY_TRIES, SecurityMiddleware, cookie
from duly.dashboard.viewer_limit import RETRY_SOON, Reads, TooManyReads
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
from duly.store.read_deadline import limit_read_time

_STILL_SIGNED_IN = "You are still signed in: go back, and sign out again."
_IN_DOUBT = "It is unknown whether the action was done: check before you repeat it."
Page = Callable[[ApplicationView, Request], PageContent | PageRedirect]


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

    `auth` returns the viewer of a request. Without it, the dashboard serves only this machine,
    under its own name, and asks for a token. Its login page logs a link that contains the token.
    Without `write`, which needs `auth`, no viewer can change anything. `hosts` are the host names
    that it accepts. Arguments that a task redacts are never shown. Without `show_arguments`, none
    are shown.
    """
    check_auth(auth)
    if write and auth is None:
        raise BadOption("dashboard(…, write=True) needs auth=, which decides who is an operator")
    view = ApplicationView(app, shows_arguments=show_arguments, writes=write)
    return _Dashboard(view, auth, hosts, title).secured


class _Dashboard:
    """The pages of one application."""

    def __init__(
        self, view: ApplicationView, auth: Auth | None, hosts: Collection[str] | None, title: str
    ) -> None:
        self._view = view
        self._logged_token = new_secret() if auth is None else None
        self._auth = auth or TokenAuth(self._logged_token or "")
        self._actions = OperatorActions(view)
        self._streams = LivePages()
        self._reads = Reads()
        self._responses = ResponseFactory(
            title=title, writes=view.writes, has_sessions=isinstance(self._auth, TokenAuth)
        )
        pages = Starlette(
            routes=self._routes(),
            exception_handlers={
                HTTPException: self._not_found,
                TooManyReads: self._too_many,
                Exception: self._broken,
            },
        )
        self.secured = SecurityMiddleware(
            compressed_pages(pages),
            auth=self._auth,
            is_local_only=auth is None,
            hosts=hosts,
            has_ended=self._has_ended,
            closed=self.closed,
            wait_for_bulk_actions=self._actions.bulk.executor.wait,
        )

    def _routes(self) -> list[Route]:
        page, act = self._page, self._act
        acts = self._actions
        return [
            Route("/", page(overview.overview)),
            Route("/runs", page(run_pages.runs)),
            Route("/runs/{run_id}", page(run_pages.run)),
            Route("/runs/{run_id}/edit", page(run_pages.edit, live=False)),
            Route("/runs/{run_id}/edit", act(acts.edit), methods=["POST"]),
            Route("/runs/{run_id}/cancel", act(acts.cancel), methods=["POST"]),
            Route("/runs/{run_id}/reschedule", page(run_pages.reschedule, live=False)),
            Route("/runs/{run_id}/reschedule", act(acts.reschedule), methods=["POST"]),
            Route("/runs/{run_id}/retry", act(acts.retry), methods=["POST"]),
            Route("/runs/{run_id}/resolve", act(acts.resolve), methods=["POST"]),
            Route("/runs/{run_id}/discard", act(acts.discard), methods=["POST"]),
            Route("/dead", page(dead.dead)),
            Route("/dead/group", page(dead.group)),
            Route("/dead/export", self._export),
            Route("/dead/confirm", act(acts.bulk.confirm), methods=["POST"]),
            Route("/dead/act", act(acts.bulk.act), methods=["POST"]),
            Route("/bulk/{act_id}", page(acts.bulk.show)),
            Route("/schedules", page(schedule_pages.schedules)),
            Route("/schedules/{name:path}/{verb}", act(acts.schedule), methods=["POST"]),
            Route("/schedules/{name:path}", page(schedule_pages.schedule)),
            Route("/queues", page(fleet.queues)),
            Route("/queues/{name:path}/{verb}", act(acts.queue), methods=["POST"]),
            Route("/workers", page(fleet.workers)),
            Route("/tasks", page(fleet.tasks)),
            Route("/audit", page(audit.audit)),
            Route("/ask", page(confirmation.confirmation_page, live=False)),
            *json_api.routes(self._view, self._reads),
            Route("/metrics", self._metrics),
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/logout", self._logout, methods=["POST"]),
            Route("/static/{path:path}", serve_asset),
        ]

    # -- pages --

    def _page(self, view: Page, *, live: bool = True) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if live and "text/event-stream" in request.headers.get("accept", ""):
                render = partial(self._fragment, view, request)
                return self._streams.answer(
                    request, render, viewer=request.state.rate_limit_identity
                )
            return await self._reads.run(request, partial(self._whole, view, request, live))

        return endpoint

    def _whole(self, view: Page, request: Request, live: bool) -> Response:  # noqa: FBT001
        try:
            with limit_read_time(PAGE_SECONDS):
                shown = dead.with_count(view(self._view, request), self._view.store)
            self._actions.bulk.executor.take_over_silent()
        except PageNotFound as nothing:
            return self._responses.message(request, "Not found", str(nothing), 404)
        except BadOption as error:
            return self._responses.message(request, "The action failed", str(error), 409)
        except StoreUnavailable as error:
            return self._responses.unavailable(request, error)
        if isinstance(shown, PageRedirect):
            return self._responses.redirect(request, shown)
        html = self._responses.render(request, shown, "base.html", live=live)
        return HTMLResponse(html, shown.status)

    async def _fragment(self, view: Page, request: Request) -> str:
        def render() -> str:
            try:
                with limit_read_time(PAGE_SECONDS):
                    shown = dead.with_count(view(self._view, request), self._view.store)
                self._actions.bulk.executor.take_over_silent()
            except PageNotFound as error:
                shown = PageContent("message.html", {"heading": "Not found", "words": str(error)})
            if isinstance(shown, PageRedirect):
                return ""
            return self._responses.render(request, shown, "fragment.html", live=True)

        return await self._reads.run(request, render)

    async def _export(self, request: Request) -> Response:
        pages = json_api.export_dead_letters(self._view, request)
        following = partial(next, pages, None)
        try:
            first = await self._reads.run(request, following)
        except PageNotFound as nothing:
            return self._responses.message(request, "Not found", str(nothing), 404)
        except StoreUnavailable as error:
            return self._responses.unavailable(request, error)

        async def texts() -> AsyncIterator[str]:
            text = first
            while text is not None:
                yield text
                text = await self._reads.run_when_free(request, following)

        headers = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}
        return StreamingResponse(texts(), headers=headers, media_type="application/jsonl")

    # -- actions --

    def _act(
        self, act: Callable[[Request, Any, str], PageRedirect | PageContent]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            viewer: Viewer = request.state.viewer
            if not self._responses.may_act(viewer):
                words_ = "This dashboard is read-only" + (
                    " for you." if self._view.writes else "; it was started without --write."
                )
                return self._responses.message(request, "Not allowed", words_, 403)
            form = await request.form(max_files=0, max_fields=1_000)
            act_now = partial(carry_out, request, form, actor_of(viewer))
            return await self._reads.run(request, act_now)

        def carry_out(request: Request, form: Any, who: str) -> Response:  # noqa: ANN401
            try:
                with limit_read_time(PAGE_SECONDS):
                    done = dead.with_count(act(request, form, who), self._view.store)
            except (PageNotFound, RunNotFound, ScheduleNotFound) as nothing:
                return self._responses.message(request, "Not found", str(nothing), 404)
            except ReadTooSlow as error:
                return self._responses.unavailable(request, error)
            except StoreUnavailable as error:
                # A reload would send the form again, and the action may have been done already.
                return self._responses.unavailable(request, error, then=_IN_DOUBT)
            except DulyError as error:
                return self._responses.message(request, "The action failed", str(error), 409)
            if isinstance(done, PageRedirect):
                return self._responses.redirect(request, done)
            html = self._responses.render(request, done, "base.html", live=False)
            return HTMLResponse(html, done.status)

        return endpoint

    # -- signing in --

    async def _login(self, request: Request) -> Response:
        if not isinstance(self._auth, TokenAuth):
            return self._responses.redirect(request, PageRedirect("/"))
        wrong, status, headers = None, 200, {}
        if request.method == "POST":
            token = str((await request.form()).get("token", ""))
            try:
                if await self._auth.accepts(token.strip(), request):
                    answer = self._responses.redirect(request, PageRedirect("/"))
                    session = self._auth.new_session()
                    set_cookie = cookie(request, COOKIE, session, seconds=SESSION_SECONDS)
                    answer.headers.append("Set-Cookie", set_cookie)
                    return answer
                wrong, status = "The token is wrong.", 401
            except TooManyTries:
                wrong, status, headers = TOO_MANY_TRIES, 429, RETRY_AFTER
        elif self._logged_token is not None:
            # The link needs an address, which only a request provides.
            place = f"{request.url.scheme}://{request.headers['host']}{root_of(request)}"
            log_dashboard_link(f"{place}/login#{self._logged_token}")
        shown = PageContent(
            "login.html", {"wrong": wrong, "is_logged": self._logged_token is not None}
        )
        html = self._responses.render(request, shown, "bare.html", live=False)
        return HTMLResponse(html, status, headers)

    async def _logout(self, request: Request) -> Response:
        session = self._auth.session_of(request) if isinstance(self._auth, TokenAuth) else None
        if session is not None:
            end = partial(self._view.sessions.end, session, actor=actor_of(request.state.viewer))
            try:
                await run_in_threadpool(end)
            except StoreUnavailable as error:
                return self._responses.unavailable(request, error, then=_STILL_SIGNED_IN)
        answer = self._responses.redirect(request, PageRedirect("/login"))
        answer.headers.append("Set-Cookie", cookie(request, COOKIE, "", seconds=0))
        return answer

    async def _has_ended(self, request: Request, session: str) -> bool:
        def look() -> bool:
            with limit_read_time(PAGE_SECONDS):
                return self._view.sessions.has_ended(session)

        return await self._reads.run(request, look)

    async def _metrics(self, request: Request) -> Response:
        try:
            # Metrics need an extra, which may not be installed.
            from duly.observe.metrics import CONTENT_TYPE, exposition  # noqa: PLC0415
        except ModuleNotFoundError:
            return PlainTextResponse("Metrics need: pip install 'duly[metrics]'\n", 501)

        def expose() -> Response:
            try:
                with limit_read_time(PAGE_SECONDS):
                    text = exposition(self._view)
            except StoreUnavailable as error:
                return PlainTextResponse(f"{error}\n", 503)
            return Response(text, headers={"Content-Type": CONTENT_TYPE})

        try:
            return await self._reads.run(request, expose)
        except TooManyReads as error:
            return PlainTextResponse(f"{error}\n", 429, RETRY_SOON)

    # -- responses --

    def closed(self, request: Request, why: str, status: int) -> Response:
        """Return the response for a client that is not admitted."""
        shown = PageContent("message.html", {"heading": "Closed", "words": why})
        html = self._responses.render(request, shown, "bare.html", live=False)
        return HTMLResponse(html, status)

    async def _not_found(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        if request.url.path.rpartition(".")[2] in {"js", "css", "svg"}:
            return PlainTextResponse("Not found\n", status)
        heading = "Not found" if status == 404 else "Not possible"  # noqa: PLR2004
        say = "There is no such page. The navigation links to all pages."
        return self._responses.message(request, heading, say, status)

    async def _too_many(self, request: Request, error: Exception) -> Response:
        done = "" if request.method in {"GET", "HEAD"} else " Nothing was done."
        answer = self._responses.message(request, "Too many requests", f"{error}{done}", 429)
        answer.headers.update(RETRY_SOON)
        return answer

    async def _broken(self, request: Request, _error: Exception) -> Response:
        say = "The dashboard met an unexpected error. See the log of its process."
        return self._responses.message(request, "Something went wrong", say, 500)
