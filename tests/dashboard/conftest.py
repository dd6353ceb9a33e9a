"""A shop after a day's work, its dashboard, and a browser to view it with."""

import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import Browser, sync_playwright
from starlette.testclient import TestClient

from duly.dashboard import dashboard
from duly.dashboard.server import listen
from duly.host_names import LOOPBACK_HOSTS
from tests.dashboard.shop import Shop
from tests.servers.browser import note_open
from tests.servers.kinds import kind_or_skip

TOKEN_FIELD = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Client(TestClient):
    """A browser without scripts: it submits the forms of the dashboard's pages."""

    def submit(self, path: str, **fields: Any) -> Any:
        """Submit a form with the CSRF token of the pages."""
        csrf = self.cookies.get("duly_csrf") or self._token()
        return self.post(
            path, data={"csrf": csrf, **fields}, headers={"Origin": str(self.base_url)}
        )

    def _token(self) -> str:
        self.get("/audit")
        return self.cookies["duly_csrf"]


def opened(app: Any, **options: Any) -> Any:
    """Return a dashboard with these options that accepts every local request."""
    anybody = {"auth": lambda _request: "anonymous", "hosts": LOOPBACK_HOSTS}
    return dashboard(app, **(options if "auth" in options else anybody | options))


def client_of(app: Any, **options: Any) -> Client:
    """Return a client of a dashboard with these options."""
    pages = opened(app, **options)
    return Client(pages, base_url="http://localhost", raise_server_exceptions=True)


@pytest.fixture
def shop(store_url: str) -> Iterator[Shop]:
    """A shop before its first run."""
    found = Shop(store_url)
    yield found
    found.released.set()
    found.app.close()


@pytest.fixture
def busy(shop: Shop) -> Shop:
    """A shop after a day's work."""
    shop.fill()
    return shop


@pytest.fixture
def client(shop: Shop) -> Client:
    """A local client with permission to act."""
    return client_of(shop.app, write=True)


class Chromium:
    """A Chromium that tests share. While it is open, the event loop of its driver runs here.

    It resolves names below .test to this machine. No name server does.
    """

    _FLAGS = (
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--host-resolver-rules=MAP *.test 127.0.0.1",
    )

    def __init__(self) -> None:
        self._open = ExitStack()
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """Return the running browser. Start a new browser at first and after a crash."""
        if self._browser is None or not self._browser.is_connected():
            self.close()
            self._browser = self._start()
        return self._browser

    def close(self) -> None:
        """Stop the browser and its event loop."""
        self._browser = None
        self._open.close()

    def _start(self) -> Browser:
        kind = kind_or_skip("chromium")
        note_open(self)
        playwright = self._open.enter_context(sync_playwright())
        launched = playwright.chromium.launch(executable_path=kind.binaries, args=self._FLAGS)
        self._open.callback(launched.close)
        return launched


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The Chromium of this test process."""
    with closing(Chromium()) as chromium:
        yield chromium


@pytest.fixture
def browser(chromium: Chromium) -> Browser:
    """One Chromium for consecutive browser tests."""
    return chromium.browser()


class Serving:
    """Serves ASGI applications, each on its own port."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[uvicorn.Server, threading.Thread]] = {}

    def __call__(self, pages: Any, *, port: int = 0) -> str:
        """Serve an application, by default on a free port. Return its address."""
        socket = listen("127.0.0.1", port)
        # Since Python 3.12, uvicorn waits for open streams, even if it is forced to exit.
        config = uvicorn.Config(
            pages, log_level="critical", lifespan="off", timeout_graceful_shutdown=0
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{socket.getsockname()[1]}"
        self._running[address] = server, thread
        return address

    def stop(self, address: str) -> None:
        """Stop one server and its streams at once."""
        server, thread = self._running.pop(address)
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
        # A thread that still renders a page would reopen the application that its test closes.
        for other in threading.enumerate():
            if other.name == "AnyIO worker thread" and other.loop.is_closed():
                other.join(10)

    def close(self) -> None:
        """Stop all servers."""
        for address in list(self._running):
            self.stop(address)


@pytest.fixture
def serve() -> Iterator[Serving]:
    """Serves ASGI applications until the end of the test."""
    serving = Serving()
    yield serving
    serving.close()


@pytest.fixture
def address(busy: Shop, serve: Serving) -> str:
    """The address of the dashboard of a shop after a day's work."""
    return serve(opened(busy.app, write=True))
