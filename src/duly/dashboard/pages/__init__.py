"""The content of each page: a function of the view and the request, without markup."""

from typing import Any, NamedTuple


class PageContent(NamedTuple):
    """A template and its variables."""

    template: str
    context: dict[str, Any]
    status: int = 200


class PageRedirect(NamedTuple):
    """Another page of the dashboard, by its path."""

    path: str


class PageNotFound(Exception):
    """The page does not exist. The message suggests what to do."""
