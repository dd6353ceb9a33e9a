"""A worker stops whatever becomes of its log."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

import pytest

from duly.worker.shutdown import Shutdown
from tests.servers.processes import wait_until
from tests.worker import shop as shop_module
from tests.worker.trees import ROOT

pytestmark = [pytest.mark.process, pytest.mark.surface]
ROOM = 8_192


@pytest.fixture
def shop(store_url):
    """The application that the worker processes import, on the same store."""
    shop_module.app.use_url(store_url)
    yield shop_module
    shop_module.app.close()


@pytest.fixture
def unread():
    """The writing end of a pipe that has room for the first lines, and is not read."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4_096))
    os.read(reader, ROOM)
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


def test_a_worker_whose_log_is_not_read_records_its_runs_and_stops(shop, store_url, unread):
    runs = shop.app.enqueue_many(shop.quick.call(number) for number in range(300))
    command = [sys.executable, "-m", "duly", "worker", "tests.worker.shop:app"]
    worker = subprocess.Popen(
        [*command, "--url", store_url, "--grace", "120"],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # A buffer is locked while it is written.
        stderr=unread,
    )
    try:
        wait_until(
            lambda: {run.refresh().state for run in runs} == {"succeeded"},
            seconds=50,
            what="all runs are recorded",
        )
        worker.send_signal(signal.SIGTERM)

        assert worker.wait(50) == 0
    finally:
        worker.kill()
        worker.wait()


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (3, "its process ended with status 3"),
        (-signal.SIGKILL, "its process was killed by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"its process was killed by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_reason_of_a_process_that_died_names_its_signal(status, text):
    shutdown = Shutdown(SimpleNamespace(emit=print), grace=25.0)

    reason = shutdown.reason_of(SimpleNamespace(retired_at=None), status, is_idle=False)

    assert reason == text
