"""A supervisor stops its processes whatever becomes of its log."""

import threading
from types import SimpleNamespace

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
