"""`duly.integrations.http_idempotency` in real uvicorn and Werkzeug processes, two of each."""

import http.client
import json
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest

from duly.guard import Guard
from duly.integrations.http_idempotency import WSGIIdempotencyMiddleware
from tests.integrations.exchanges import Answer
from tests.servers.processes import free_port, wait_until
from tests.servers.warm import Program, warm

ROOT = Path(__file__).parents[2]
UVICORN = ("uvicorn", "tests.integrations.served:fast", "--log-level", "critical")
FLASK = ("flask", "--app", "tests.integrations.served:flask", "run")
IMPORTS = (
    "fastapi",
    "flask.cli",
    "uvicorn.lifespan.on",
    "uvicorn.protocols.http.h11_impl",
    "duly.integrations.http_idempotency",
    "duly.store.postgres.store",
    "duly.store.sqlite.store",
)
SERVERS = pytest.mark.parametrize("command", [UVICORN, FLASK], ids=["uvicorn", "werkzeug"])

ON_ONE = pytest.mark.stores("sqlite")
"""These tests are about the servers, not about the store."""

pytestmark = pytest.mark.process


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return the file that the applications write their notes to."""
    log = tmp_path / "served.log"
    log.touch()
    return log


@contextmanager
def serving(
    command: tuple[str, ...], url: str, log: Path, **variables: str
) -> Iterator[tuple[int, Program]]:
    """Serve an application from a process. Yield its port and the process."""
    port = free_port()
    environment = os.environ | {
        "DULY_URL": url,
        "SERVED_LOG": str(log),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    server = warm(*IMPORTS).start(
        ["-m", *command, "--port", str(port)],
        log=log.with_name("server.log"),
        folder=log.parent,
        environment=environment | variables,
    )
    try:
        wait_until(lambda: is_listening(port), seconds=40, what="the server listens")
        yield port, server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def is_listening(port: int) -> bool:
    """Return whether a server accepts connections on the port."""
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def post(
    port: int, path: str = "/pay", key: str | None = '"k"', body: bytes = b"{}", **headers: str
) -> Answer:
    """Send a request over its own connection, with the same host name for all servers."""
    headers = {"Host": "shop.example", "Authorization": "Bearer ann"} | headers
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        if key is not None:
            headers["Idempotency-Key"] = key
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        pairs = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, pairs, answer.read())


@ON_ONE
@SERVERS
def test_every_status_is_sent_over_a_real_connection(command, store_url, log):
    with serving(command, store_url, log) as (port, _):
        first, again = post(port), post(port)
        missing = post(port, "/strict", None)
        malformed = post(port, "/strict", "two words")
        reused = post(port, body=b"[]")
        large = post(port, body=b"x" * 101)
        broken = [post(port, "/break", "b").status for _ in range(2)]
        others = post(port, Authorization="Bearer other")

    assert (first.status, first.is_replay) == (201, False)
    assert (again.status, again.is_replay) == (201, True)
    assert (again.body, again.headers["content-type"]) == (first.body, "application/json")
    assert (missing.status, missing.code) == (400, "key-missing")
    assert (malformed.status, malformed.code) == (400, "key-malformed")
    assert (reused.status, reused.code) == (422, "key-reused")
    assert (large.status, large.code) == (413, "body-too-large")
    assert broken == [500, 500]
    assert (others.status, others.is_replay) == (201, False)
    done = Counter(log.read_text().splitlines())
    assert done == {"began": 2, "paid": 2, "broke": 2}


@SERVERS
def test_one_of_eight_equal_requests_to_two_processes_is_executed(command, store_url, log):
    with ExitStack() as stack:
        ports = [stack.enter_context(serving(command, store_url, log))[0] for _ in range(2)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(post, ports * 4))
        afterwards = [post(port) for port in ports]

    new = [answer for answer in answers if answer.status == 201 and not answer.is_replay]
    others = [answer for answer in answers if answer not in new]
    assert len(new) == 1
    assert all(other.is_replay or other.code == "in-progress" for other in others)
    assert {answer.body for answer in afterwards} == {new[0].body}
    assert log.read_text().splitlines() == ["began", "paid"]


@SERVERS
def test_a_request_whose_server_was_killed_is_executed_by_a_retry(command, store_url, log):
    with (
        serving(command, store_url, log, SERVED_HANGS="yes") as (dying, server),
        serving(command, store_url, log) as (port, _),
        ThreadPoolExecutor(1) as pool,
    ):
        lost = pool.submit(post, dying)
        wait_until(lambda: "began" in log.read_text(), seconds=20, what="the first has begun")
        busy = post(port)
        os.killpg(server.pid, signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, OSError)):
            lost.result(timeout=20)
        wait_until(lambda: post(port).status == 201, seconds=20, what="the lease has expired")
        again = post(port)

    assert (busy.status, busy.code) == (409, "in-progress")
    assert again.is_replay
    assert log.read_text().splitlines() == ["began", "began", "paid"]


@ON_ONE
def test_a_stream_whose_client_hung_up_is_completed_and_replayed(store_url, log):
    with serving(UVICORN, store_url, log) as (port, _):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            named = {"Idempotency-Key": "k", "Host": "shop.example", "Authorization": "Bearer ann"}
            connection.request("POST", "/stream", b"", named)
            assert connection.getresponse().read(2) == b"0\n"
        wait_until(
            lambda: post(port, "/stream", body=b"").status != 409,
            seconds=20,
            what="the stream has ended",
        )
        again = post(port, "/stream", body=b"")

    assert (again.body, again.is_replay) == (b"0\n1\n2\n3\n4\n", True)
    assert len(log.read_text().splitlines()) == 5


@ON_ONE
def test_background_tasks_run_after_the_response_and_once(store_url, log):
    with serving(UVICORN, store_url, log) as (port, _):
        first, again = post(port, "/later"), post(port, "/later")
        before = log.read_text().splitlines()
        wait_until(lambda: "later" in log.read_text(), seconds=20, what="the task has run")

    assert (first.status, again.is_replay) == (200, True)
    assert before == ["now"]
    assert log.read_text().splitlines() == ["now", "later"]


@ON_ONE
def test_the_wsgi_server_of_the_standard_library_works_with_the_middleware(store_url):
    def app(environ, start_response):
        calls.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"o", b"k"]

    class Quiet(WSGIRequestHandler):
        def log_message(self, *_: object) -> None:
            """Log nothing."""

    calls: list[bytes] = []
    guard = Guard(store_url)
    server = make_server("127.0.0.1", 0, WSGIIdempotencyMiddleware(app, guard), handler_class=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        first, again = post(server.server_port), post(server.server_port)
        reused = post(server.server_port, body=b"[]")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        guard.close()

    assert (first.body, first.is_replay) == (b"ok", False)
    assert (again.body, again.is_replay) == (b"ok", True)
    assert reused.code == "key-reused"
    assert calls == [b"{}"]


@ON_ONE
@pytest.mark.parametrize(
    "command",
    [
        ("uvicorn", "examples.idempotent_fastapi:app", "--log-level", "critical"),
        ("flask", "--app", "examples.idempotent_flask", "run"),
    ],
    ids=["fastapi", "flask"],
)
def test_an_example_takes_a_payment_once(command, store_url, log):
    with serving(command, store_url, log) as (port, _):
        paid = [post(port, "/payments?cents=4200") for _ in range(2)]
        missing = post(port, "/payments?cents=1", None)
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/payments")
            total = json.loads(connection.getresponse().read())

    assert [answer.is_replay for answer in paid] == [False, True]
    assert paid[0].body == paid[1].body
    assert missing.status == 400
    assert total == {"count": 1, "cents": 4200}
