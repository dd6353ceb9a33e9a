"""What the router refuses: errors as HTTP answers, and requests that other sites forged."""

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
    """Answers with the sentence of an error, under the status that fits it."""

    def get_route_handler(self) -> _Handler:
        """Return FastAPI's handler, with our errors in its terms."""
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
    """Return what is wrong with an input, without the input itself.

    That may be secret; and a NaN or half a character, which JSON can spell, no answer can repeat.
    """
    where = [ascii(part)[1:-1] if isinstance(part, str) else part for part in error["loc"]]
    return {"type": error["type"], "loc": where, "msg": error["msg"]}


def require_auth(auth: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dependency that returns what `auth` does, and refuses where that is nobody.

    None, "" and False are nobody. A dependency that only raises lets nobody in: it must return who
    asks, so that one which forgets to answer does not let everybody in.
    """

    async def check(found: Annotated[Any, Depends(auth)]) -> Any:  # noqa: ANN401 - the user's own
        # FastAPI does not await what a plain function returns.
        who = await found if inspect.isawaitable(found) else found
        if not who:
            raise HTTPException(403, "access denied: auth= returned no user")
        return who

    return check


def require_same_origin(allowed: frozenset[str]) -> Callable[[Request], None]:
    """Return a dependency that refuses what a page of another origin makes a browser send.

    Browsers send cookies along with such requests, and name the page's origin in each; whoever
    sends no origin is no browser.
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
