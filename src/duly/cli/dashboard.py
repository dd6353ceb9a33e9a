"""`duly dashboard`: serves the dashboard on its own."""

import ipaddress
import re
from contextlib import closing
from importlib.util import find_spec
from typing import NamedTuple

import click

from duly.cli.applications import app_of
from duly.cli.output import print_json, print_line, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.clock import new_secret
from duly.errors import BadOption, DulyError
from duly.host_names import LOOPBACK_HOSTS
from duly.settings import load_settings, parse_proxies, parse_users
from duly.worker.garbage_collection import collect_less

TOKEN = "DULY_DASHBOARD_TOKEN"  # noqa: S105 - the name of a variable
USERS = "DULY_DASHBOARD_USERS"
_NEEDED = ("jinja2", "python_multipart", "starlette", "uvicorn")


class DashboardAddress(NamedTuple):
    """The address of a dashboard, and its token if this command generated one."""

    address: str
    token: str | None

    @property
    def link(self) -> str | None:
        """Return the link that signs a browser in.

        Browsers do not send the part after # to a server.
        """
        return f"{self.address}login#{self.token}" if self.token else None

    def as_json(self, *, write: bool) -> dict[str, str | bool | None]:
        """Return the address as JSON data."""
        return {"address": self.address, "token": self.token, "link": self.link, "write": write}


class ExtraMissing(DulyError):
    """The dashboard needs packages that are not installed."""


def missing_extra() -> str | None:
    """Return what must be installed to serve the dashboard, or None if nothing is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if not missing:
        return None
    return f"{' and '.join(missing)} cannot be found; install: pip install 'duly[web]'"


@click.command("dashboard")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_008,
    show_default=True,
    help="0 selects any free port.",
)
@click.option("--write", is_flag=True, help="Allow operator actions, not only reads.")
@click.option(
    "--allow-host", multiple=True, metavar="NAME", help="Also answer requests for this host name."
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    callback=lambda _context, _option, path: _root(path),
    help="The path under which a proxy serves the dashboard, such as /duly.",
)
@click.option(
    "--forwarded-allow-ips",
    metavar="ADDRESSES",
    callback=lambda _context, _option, text: _proxies(text),
    help="Trust X-Forwarded-For and X-Forwarded-Proto from these proxies: 127.0.0.1,10.0.0.0/8.",
)
@click.option("--hide-args", is_flag=True, help="Hide arguments and results.")
@click.option("--create", is_flag=True, help="Create the database if it does not exist.")
@shared_options
@pass_session
def command(
    session: CommandSession,
    /,
    *,
    host: str,
    port: int,
    write: bool,
    allow_host: tuple[str, ...],
    root_path: str,
    forwarded_allow_ips: tuple[str, ...],
    hide_args: bool,
    create: bool,
) -> None:
    """Serve the dashboard of an application or a store until Ctrl-C.

    A browser signs in with a token: DULY_DASHBOARD_TOKEN, or a generated token that is printed as a
    link. DULY_DASHBOARD_USERS="ann:…,bob:…" requires names and passwords instead. Serving other
    machines needs one of the two variables.
    """
    settings = load_settings()
    token, users = settings.dashboard_token, parse_users(settings.dashboard_users)
    if not _is_loopback(host) and not token and not users:
        raise click.UsageError(
            f"{host} can be reached from other machines: set {TOKEN} or {USERS} first, or listen "
            "on 127.0.0.1"
        )
    missing = missing_extra()
    if missing is not None:
        raise ExtraMissing(missing)
    # Imported here, since a usage message does not need the web packages.
    from duly.dashboard import BasicAuth, TokenAuth, dashboard  # noqa: PLC0415
    from duly.dashboard.server import below, listen, serve  # noqa: PLC0415

    made_up = None if token or users else new_secret()
    auth = BasicAuth(users) if users else TokenAuth(token or made_up or "")
    app = app_of(session, creates=create)
    name = f"[{host}]" if ":" in host else host
    pages = dashboard(
        app,
        auth=auth,
        write=write,
        hosts={*LOOPBACK_HOSTS, name, *allow_host},
        show_arguments=not hide_args,
    )
    with closing(listen(host, port)) as socket:
        place = DashboardAddress(f"http://{name}:{socket.getsockname()[1]}{root_path}/", made_up)
        if session.as_json:
            print_json(place.as_json(write=write))
        else:
            print_line(f"Dashboard of {app.store.shown_url} at {place.address}")
            if place.link:
                print_line(f"Sign in with this link: {place.link}")
            if not write and not session.quiet:
                print_note("Read-only. Pass --write to allow operator actions.")
        collect_less()
        proxies = forwarded_allow_ips or parse_proxies(settings.dashboard_forwarded_allow_ips)
        serve(below(pages, root_path), socket, proxies=proxies)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _proxies(text: str | None) -> tuple[str, ...]:
    try:
        return parse_proxies(text)
    except BadOption as error:
        raise click.BadParameter(str(error)) from None


def _root(path: str) -> str:
    if not path.strip("/"):
        return ""
    if not re.fullmatch(r"(/[\w.~-]+)+/?", path):
        raise click.BadParameter("a path must begin with a slash, such as /duly")
    return path.rstrip("/")
