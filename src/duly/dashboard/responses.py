"""The responses of the dashboard: pages from templates, redirects and error pages."""

from pathlib import Path
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from duly.core.display import display_action
from duly.core.instants import iso
from duly.core.time_text import coarse_duration, exact_utc_text, relative
from duly.dashboard import formats, search_query
from duly.dashboard.assets import asset_address
from duly.dashboard.auth import Viewer
from duly.dashboard.pages import PageContent, PageRedirect
from duly.dashboard.security import CSRF_FIELD
from duly.errors import ReadTooSlow, StoreUnavailable
from duly.version import VERSION

_HERE = Path(__file__).parent
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
"""The path, the name, and the key to press after g."""


class ResponseFactory:
    """Creates the responses of one dashboard."""

    def __init__(self, *, title: str, writes: bool, has_sessions: bool) -> None:
        self._title = title
        self._writes = writes
        self._has_sessions = has_sessions
        self._templates = _environment()

    def may_act(self, viewer: Viewer | None) -> bool:
        """Return whether a viewer may perform operator actions."""
        return self._writes and viewer is not None and viewer.role == "operator"

    def unavailable(
        self, request: Request, error: StoreUnavailable, *, then: str = "Reload to try again."
    ) -> Response:
        """Return the response for a database that cannot be reached or is too slow."""
        is_slow = isinstance(error, ReadTooSlow)
        heading = "This took too long" if is_slow else "The database does not answer"
        return self.message(request, heading, f"{_sentence(error)} {then}", 503)

    def message(self, request: Request, heading: str, say: str, status: int) -> Response:
        """Return a page with a short message."""
        shown = PageContent("message.html", {"heading": heading, "words": say})
        html = self.render(request, shown, "base.html", live=False)
        return HTMLResponse(html, status)

    def redirect(self, request: Request, where: PageRedirect) -> RedirectResponse:
        """Return a redirect to another page."""
        return RedirectResponse(root_of(request) + quote(where.path, safe="/?=&%:"), 303)

    def render(self, request: Request, shown: PageContent, layout: str, *, live: bool) -> str:
        """Return the HTML of a page."""
        viewer: Viewer | None = getattr(request.state, "viewer", None)
        root = root_of(request)
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
            "may_act": self.may_act(viewer),
            "can_sign_out": self._has_sessions,
            "csrf": getattr(request.state, "csrf", ""),
            "csrf_field": CSRF_FIELD,
            "live": live,
            "dead": None,
        }
        return self._templates.get_template(shown.template).render(context | shown.context)


def root_of(request: Request) -> str:
    """Return the path under which the dashboard is mounted, including a proxy's prefix."""
    root: str = request.scope.get("root_path", "")
    return quote(root.rstrip("/"))


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}."


def _environment() -> Environment:
    # Escape everything, whatever the name of a template is.
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "iso": iso,
        "exact": exact_utc_text,
        "ago": relative,
        "took": formats.took,
        "coarse": coarse_duration,
        "number": formats.count,
        "dead_number": formats.count_dead,
        "action": display_action,
        "short_task": formats.short_task,
        "pretty": formats.pretty,
    }
    environment.globals |= {"asset": asset_address, "percent": formats.percent, "query": _query}
    environment.globals |= {"term": search_query.term, "tag_term": search_query.tag_term}
    return environment


def _query(**parameters: str | None) -> str:
    """Return the query string of an address."""
    return urlencode({name: value for name, value in parameters.items() if value})
