"""Scripts, styles and icons, read and compressed once, and cached by browsers permanently.

The address of an asset in a page ends with a digest of its content, so that another version has
another address.
"""

import gzip
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

_FOLDER = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_WORTH_BYTES = 1_000
"""Smaller assets are sent uncompressed."""
_FOR_GOOD = "public, max-age=31536000, immutable"
_OUR_SITES = frozenset({"same-origin", "none"})


class Asset(NamedTuple):
    """One file as it is sent."""

    content: bytes
    compressed: bytes | None
    type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """Return all assets by path."""
    files = sorted(path for path in _FOLDER.rglob("*") if path.suffix in _TYPES)
    return {path.relative_to(_FOLDER).as_posix(): _read(path) for path in files}


def asset_address(root: str, path: str) -> str:
    """Return the address of an asset for a page that is mounted at `root`."""
    return f"{root}/static/{path}?v={assets()[path].digest}"


async def serve_asset(request: Request) -> Response:
    """Return an asset, compressed if the client accepts that."""
    asset = assets().get(request.path_params["path"])
    if asset is None:
        return PlainTextResponse("Not found\n", 404)
    # A page of another version may be open, or another process may still run that version.
    is_current = request.query_params.get("v") == asset.digest
    headers = {
        "Cache-Control": _FOR_GOOD if is_current else "no-cache",
        "ETag": f'"{asset.digest}"',
        "Vary": "Accept-Encoding",
    }
    if asset.digest in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["Content-Type"] = asset.type
    if asset.compressed is None or not _reads_gzip(request.headers.get("accept-encoding", "")):
        return Response(asset.content, headers=headers)
    return Response(asset.compressed, headers=headers | {"Content-Encoding": "gzip"})


def compressed_pages(pages: ASGIApp) -> ASGIApp:
    """Return the pages with compression, except for requests that another site may have caused.

    An attacker who can put text into a page and see the size of the response could guess the page's
    other content. For encrypted pages, browsers send the site that caused a request.
    """
    compressing = GZipMiddleware(pages, minimum_size=_WORTH_BYTES, compresslevel=6)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        is_ours = scope["type"] == "http" and _may_compress(Request(scope))
        await (compressing if is_ours else pages)(scope, receive, send)

    return answer


def _may_compress(request: Request) -> bool:
    return (
        request.headers.get("sec-fetch-site") in _OUR_SITES
        and "text/event-stream" not in request.headers.get("accept", "")
        and _reads_gzip(request.headers.get("accept-encoding", ""))
    )


def _reads_gzip(accepted: str) -> bool:
    codings = [each.strip().lower().replace(" ", "") for each in accepted.split(",")]
    return any(
        each.partition(";")[0] == "gzip" and not each.endswith((";q=0", ";q=0.0"))
        for each in codings
    )


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()[:16]
    # Without a timestamp, so that every process has the same bytes.
    small = gzip.compress(content, 9, mtime=0) if len(content) > _WORTH_BYTES else None
    return Asset(content, small, _TYPES[path.suffix], digest)
