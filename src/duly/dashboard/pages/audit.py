"""The audit page: the operator actions and who performed them."""

import re

from starlette.requests import Request

from duly.dashboard.application_view import ApplicationView
from duly.dashboard.pages import PageContent
from duly.limits import PAGE_DEFAULT

_PAGES = {"": "runs", "bulk ": "bulk"}
_ID = re.compile(r"(|bulk )([0-9a-f]{8}-[0-9a-f-]{27})")


def audit(view: ApplicationView, request: Request) -> PageContent:
    """List audit entries, newest first."""
    given = request.query_params.get("before", "")
    before = int(given) if given.isdecimal() and len(given) < 18 else None  # noqa: PLR2004 - bigint
    subject = request.query_params.get("subject") or None
    if subject is not None and "\0" in subject:
        subject = None
    acts = view.store.list_audit_entries(subject, PAGE_DEFAULT, before)
    return PageContent(
        "audit.html",
        {
            "now": view.store.now(),
            "acts": [(act, _page_of(act.subject)) for act in acts],
            "following": acts[-1].number if len(acts) == PAGE_DEFAULT else None,
            "subject": subject,
            "cursor": before,
        },
    )


def _page_of(subject: str) -> str | None:
    """Return the page of an audit entry's subject, or None if it has no page."""
    found = _ID.fullmatch(subject)
    return found and f"/{_PAGES[found[1]]}/{found[2]}"
