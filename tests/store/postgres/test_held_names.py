"""Names that callers of this process hold in transactions of their own."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from queue import Queue
from typing import Any

from duly.connections import execute_dialogue
from duly.store.ops.steps import SendEvent
from duly.store.postgres import held_names
from duly.store.postgres.held_names import HeldNames
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import TIMEOUT, order


def test_any_number_of_threads_note_names_at_the_same_time():
    known = HeldNames("", lambda _ops: [])
    errors: list[BaseException] = []

    def note(thread: int) -> None:
        try:
            for number in range(5_000):
                known.note(SendEvent(f"{thread}-{number}", "null"))
        except BaseException as error:  # noqa: BLE001 - the test compares it
            errors.append(error)

    between = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=note, args=(thread,)) for thread in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(between)
    assert errors == []


def test_callers_that_wait_for_a_held_name_do_not_delay_callers_of_another_name(
    store, url, connection, monkeypatch
):
    monkeypatch.setattr(held_names, "_AGAIN_SECONDS", 1.0)
    tries: list[str] = []
    writers = store._here().writers
    write = writers._write_named

    def noted(ops):
        tries.extend({op.key.text for op in ops})
        return write(ops)

    monkeypatch.setattr(writers, "_write_named", noted)
    with closing(open_store(url)) as another:
        execute_dialogue(connection, partial(another.enqueue_on_connection, order(key="held")))
    with ThreadPoolExecutor(40) as callers:
        waiting = [callers.submit(store.apply, [order(key="held")]) for _ in range(40)]
        wait_until(lambda: "held" in tries, seconds=TIMEOUT, what="a try")
        assert store.do(order(key="free")).new
        # One attempt for all that arrived at once, and one for the first of them alone.
        assert tries.count("held") <= 2
        connection.commit()
        assert not any(each.result(TIMEOUT)[0].new for each in waiting)


def test_event_loop_callers_share_one_thread_that_waits(store, url, connection):
    answers: Queue[Any] = Queue()
    with closing(open_store(url)) as another:
        execute_dialogue(connection, partial(another.enqueue_on_connection, order(key="held")))
    for _ in range(30):
        store.submit([order(key="held")], answers.put)
    wait_until(
        lambda: "duly-held-key" in [thread.name for thread in threading.enumerate()],
        seconds=TIMEOUT,
        what="the thread that waits",
    )
    store.submit([order(key="free")], answers.put)
    assert answers.get(timeout=TIMEOUT)[0].new
    names = [thread.name for thread in threading.enumerate()]
    connection.commit()

    assert not any(answers.get(timeout=TIMEOUT)[0].new for _ in range(30))
    assert names.count("duly-held-key") == 1
