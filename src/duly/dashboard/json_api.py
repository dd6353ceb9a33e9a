"""A read-only JSON API with the content of the pages."""

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from duly.api.json_forms import (
    ATTEMPT,
    AUDIT_ENTRY,
    DEAD_LETTER_GROUP,
    LOG_LINE,
    WORKER,
    Document,
    queue_document,
    run_document,
    run_summary,
    schedule_document,
    step_document,
)
from duly.core.key import check_storable
from duly.dashboard import schemas, search_query
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.pages import PageNotFound
from duly.dashboard.pages.dead import WINDOWS, selection_of
from duly.dashboard.search_query import Search
from duly.dashboard.viewer_limit import RETRY_SOON, Reads, TooManyReads
from duly.errors import BadOption, DulyError, StoreUnavailable
from duly.limits import COUNT_CAP, PAGE, PAGE_DEFAULT, PAGE_SECONDS
from duly.store.read_deadline import limit_read_time
from duly.store.reads import RunFilter
from duly.version import VERSION

_LOG_LINES = 500
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_TEXT: Document = {"type": "string"}
_LIMIT: Document = {"type": "integer", "minimum": 1, "maximum": PAGE, "default": PAGE_DEFAULT}
_REFUSALS = {
    401: "Not signed in",
    403: "Access denied",
    404: "Not found",
    421: "The dashboard does not answer requests for that host name",
    422: "A parameter is not valid",
    429: "The viewer has too many requests open",
    503: "The database does not answer",
}


class _Endpoint(NamedTuple):
    """One address: its content, its parameters and its OpenAPI description."""

    path: str
    summary: str
    read: Callable[[ApplicationView, Request], Document]
    schema: Document
    query: dict[str, Document]


def routes(view: ApplicationView, reads: Reads) -> list[Route]:
    """Return the routes."""
    document = openapi()

    async def describe(_request: Request) -> Response:
        return JSONResponse(document)

    return [
        Route("/api/openapi.json", describe),
        *(Route(answer.path, _endpoint(view, answer, reads)) for answer in _ENDPOINTS),
    ]


def _endpoint(
    view: ApplicationView, answer: _Endpoint, reads: Reads
) -> Callable[[Request], Awaitable[Response]]:
    def respond(request: Request) -> Response:
        try:
            with limit_read_time(PAGE_SECONDS):
                return JSONResponse(answer.read(view, request))
        except PageNotFound as nothing:
            return _refusal(404, str(nothing))
        except StoreUnavailable as error:
            return _refusal(503, str(error))
        except DulyError as error:
            return _refusal(422, str(error))

    async def endpoint(request: Request) -> Response:
        try:
            return await reads.run(request, partial(respond, request))
        except TooManyReads as error:
            return _refusal(429, str(error), RETRY_SOON)

    return endpoint


def _refusal(status: int, words: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"detail": words}, status, headers)


# -- content --


def _runs(view: ApplicationView, request: Request) -> Document:
    search = search_query.read(
        _text(request, "q") or "", view.store.now(), cursor=_text(request, "before")
    )
    if search.hints:
        raise BadOption(" ".join(search.hints))
    found, following = view.find(search, _limit(request))
    return {"runs": [run_summary(run) for run in found], "next": following}


def _run(view: ApplicationView, request: Request) -> Document:
    run_id = str(request.path_params["run_id"])
    check_storable("run id", run_id)
    run = view.store.get_run(run_id)
    if run is None:
        raise PageNotFound(f"there is no run {run_id}; it may have been pruned")
    store = view.store
    steps = [step for step in store.list_steps(run.id) if step.name]
    return run_document(run, view.calls) | {
        "attempts": [ATTEMPT.document(each) for each in store.list_attempts(run.id)],
        "steps": [step_document(run, step, view.calls) for step in steps],
        "logs": [LOG_LINE.document(each) for each in store.list_logs(run.id, _LOG_LINES)],
        "acts": [AUDIT_ENTRY.document(each) for each in store.list_audit_entries(run.id, PAGE)],
    }


def export_dead_letters(view: ApplicationView, request: Request) -> Iterator[str]:
    """Yield the selected dead letters as JSON lines, page by page."""
    with limit_read_time(PAGE_SECONDS):
        which = selection_of(request, view.store.now())
    for page in view.pages(Search("", which)):
        runs = [run_document(run, view.calls) for run in page]
        yield "".join(json.dumps(run, ensure_ascii=False) + "\n" for run in runs)


def _groups(view: ApplicationView, request: Request) -> Document:
    window = _text(request, "window") or "all"
    if window not in WINDOWS:
        raise BadOption(f"window must be one of {', '.join(WINDOWS)}, not {window!r:.40}")
    ago = WINDOWS[window]
    since = None if ago is None else view.store.now() - ago
    groups = view.store.list_dead_groups(RunFilter(since=since, limit=_limit(request)))
    return {"groups": [DEAD_LETTER_GROUP.document(group) for group in groups], "next": None}


def _schedules(view: ApplicationView, request: Request) -> Document:
    limit = _limit(request)
    found = view.schedules.page(_text(request, "after") or "", limit)
    following = found[-1].name if len(found) == limit else None
    return {
        "schedules": [schedule_document(schedule, view.calls) for schedule in found],
        "next": following,
    }


def _queues(view: ApplicationView, _request: Request) -> Document:
    found = view.store.list_queues()
    return {"queues": [queue_document(queue) for queue in found], "next": None}


def _workers(view: ApplicationView, _request: Request) -> Document:
    found = view.store.list_workers()
    return {"workers": [WORKER.document(worker) for worker in found], "next": None}


def _text(request: Request, name: str) -> str | None:
    given = request.query_params.get(name)
    if given is not None:
        check_storable(name, given)
    return given


def _limit(request: Request) -> int:
    given = request.query_params.get("limit")
    if given is None:
        return PAGE_DEFAULT
    if not (_NUMBER.fullmatch(given) and int(given) <= PAGE):
        raise BadOption(f"limit must be a whole number from 1 to {PAGE}")
    return int(given)


# -- description --

_ENDPOINTS = (
    _Endpoint(
        "/api/runs",
        "Runs that match a filter, newest first",
        _runs,
        schemas.page_schema("runs", schemas.run_schema()),
        {"q": _TEXT, "before": _TEXT, "limit": _LIMIT},
    ),
    _Endpoint("/api/runs/{run_id}", "One run", _run, schemas.detail_schema(), {}),
    _Endpoint(
        "/api/dead",
        "Dead letters by task and error, the largest group first",
        _groups,
        schemas.page_schema("groups", schemas.schema_of(DEAD_LETTER_GROUP)),
        {"window": {"type": "string", "enum": list(WINDOWS)}, "limit": _LIMIT},
    ),
    _Endpoint(
        "/api/schedules",
        "Schedules by name",
        _schedules,
        schemas.page_schema("schedules", schemas.schedule_schema()),
        {"after": _TEXT, "limit": _LIMIT},
    ),
    _Endpoint(
        "/api/queues",
        f"Queues; counts stop at {COUNT_CAP:,}",
        _queues,
        schemas.page_schema("queues", schemas.queue_schema()),
        {},
    ),
    _Endpoint(
        "/api/workers",
        "Workers, newest first",
        _workers,
        schemas.page_schema("workers", schemas.schema_of(WORKER)),
        {},
    ),
)


def openapi() -> Document:
    """Return the OpenAPI document of the API."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "duly dashboard", "version": VERSION},
        "paths": {answer.path: {"get": _operation(answer)} for answer in _ENDPOINTS},
    }


def _operation(answer: _Endpoint) -> Document:
    parameters = [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in answer.query.items()
    ]
    if "{" in answer.path:
        place = {"name": "run_id", "in": "path", "required": True, "schema": _TEXT}
        parameters.append(place)
    responses: Document = {
        str(status): {"description": words} for status, words in _REFUSALS.items()
    }
    content = {"application/json": {"schema": answer.schema}}
    responses["200"] = {"description": answer.summary, "content": content}
    return {"summary": answer.summary, "parameters": parameters, "responses": responses}
