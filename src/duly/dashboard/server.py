"""Serves the dashboard on its own with uvicorn."""

import socket as sockets
from collections.abc import Sequence

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from duly.errors import DulyError

_SHUTDOWN_SECONDS = 2
"""Open pages are endless streams, so shutdown does not wait for them."""


class CannotListen(DulyError):
    """The address is in use or not available on this machine."""

    def __init__(self, host: str, port: int, why: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port}: {why.strerror}; choose another --port")


def listen(host: str, port: int) -> sockets.socket:
    """Return a listening socket."""
    try:
        family, kind, _, _, address = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)[0]
        found = sockets.socket(family, kind)
    except OSError as error:
        raise CannotListen(host, port, error) from error
    try:
        found.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()
    except OSError as error:
        found.close()
        raise CannotListen(host, port, error) from error
    return found


def below(pages: ASGIApp, root: str) -> ASGIApp:
    """Serve pages below the path of a proxy, whether or not the proxy removes the path."""
    if not root:
        return pages

    async def serve_below(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            whole = path if path == root or path.startswith(f"{root}/") else root + path
            scope = {**scope, "root_path": root, "path": whole if whole != root else f"{root}/"}
        await pages(scope, receive, send)

    return serve_below


def serve(pages: ASGIApp, socket: sockets.socket, *, proxies: Sequence[str] = ()) -> None:
    """Serve requests until a signal stops the server.

    Only these proxies may set the client's address and scheme. Without any, uvicorn would trust
    every program on this machine.
    """
    config = uvicorn.Config(
        pages,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    uvicorn.Server(config).run(sockets=[socket])
