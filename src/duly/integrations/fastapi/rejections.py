"""Rejections by the router: errors as HTTP responses, and protection against forged requests."""

import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from duly.errors import (
    BadArguments,
    BadOption,
    DulyError,
    PayloadError,
    QueueFull,
    RunNotFinal,
    RunNotFound,
    ScheduleEnded,
    ScheduleNotFound,
    StepNotResolved,
    StoreUnavailable,
    TaskNotRegistered,
)

_STATUS: dict[type[DulyError], int] = {
    RunNotFound: 404,
    ScheduleNotFound: 404,
    RunNotFinal: 409,
    StepNotResolved: 409,
    ScheduleEnded: 409,
    TaskNotRegistered: 409,
    BadArguments: 422,
    BadOption: 422,
    PayloadError: 422,
    StoreUnavailable: 503,
    QueueFull: 503,
}

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ErrorResponseRoute(APIRoute):
    """Converts duly's errors to HTTP responses with a matching status and the error's message."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler, with duly's errors converted."""
        handle = super().get_route_handler()

        async def handle_errors(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                raise RequestValidationError(
                    [_safe_detail(each) for each in error.errors()]
                ) from None
            except DulyError as error:
                for kind, status in _STATUS.items():
                    if isinstance(error, kind):
                        raise HTTPException(status, str(error)) from error
                raise

        return handle_errors


def _safe_detail(error: dict[str, Any]) -> dict[str, Any]:
    """Return a validation error without the input that caused it.

    The input may be secret. It may also contain a NaN or a lone surrogate, which JSON can encode
    but no response can repeat.
    """
    where = [ascii(part)[1:-1] if isinstance(part, str) else part for part in error["loc"]]
    return {"type": error["type"], "loc": where, "msg": error["msg"]}


def require_auth(auth: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency that returns the result of `auth`, and refuses the request without one.

    None, "" and False count as no caller. A dependency that only raises lets no request pass: it
    must return the caller, so that a forgotten `return` does not admit everyone.
    """

    async def check(found: Annotated[Any, Depends(auth)]) -> Any:  # noqa: ANN401 - the user's own
        # FastAPI does not await what a plain function returns.
        who = await found if inspect.isawaitable(found) else found
        if not who:
            raise HTTPException(403, "access denied: auth= returned no user")
        return who

    return check


def require_same_origin(allowed: frozenset[str]) -> Callable[[Request], None]:
    """Return a dependency that refuses cross-origin requests of browsers.

    Browsers send cookies with such requests, and name the page's origin in each. A client that
    sends no origin is not a browser.
    """

    def check(request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None:
            is_forged = request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        else:
            place = origin.partition("://")[2]
            is_own = place != "" and place == request.headers.get("host")
            is_forged = not is_own and origin not in allowed
        if is_forged:
            raise HTTPException(
                403,
                "a page of another origin sent this request; allowed_origins= lists the allowed "
                "origins",
            )

    return check
