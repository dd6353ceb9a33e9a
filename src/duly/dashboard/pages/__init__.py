"""What each page shows: a function of the desk and the request, without any markup."""

from typing import Any, NamedTuple


class PageContent(NamedTuple):
    """A template and what it is filled with."""

    template: str
    context: dict[str, Any]
    status: int = 200


class PageRedirect(NamedTuple):
    """Another page of ours, by its path below the dashboard."""

    path: str


class PageNotFound(Exception):
    """There is no such thing; the message says what to do next."""
