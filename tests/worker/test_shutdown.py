"""A supervisor stops its processes whatever becomes of its log."""

import signal
import threading
from types import SimpleNamespace

import pytest

from duly.worker.shutdown import Shutdown


def test_a_log_that_is_not_read_does_not_delay_a_stop():
    is_read, is_back = threading.Event(), threading.Event()
    bus = SimpleNamespace(emit=lambda _event: is_read.wait(60))

    def stop():
        Shutdown(bus, grace=25.0).begin("Ctrl-C")
        is_back.set()

    threading.Thread(target=stop, daemon=True).start()

    assert is_back.wait(20)
    is_read.set()


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
