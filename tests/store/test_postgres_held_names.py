"""Names that callers of this process have taken in transactions of their own."""

import sys
import threading

from duly.store.postgres.held_names import HeldNames
from duly.store.postgres.line import Line
from duly.store.step_ops import SendEvent


def test_any_number_of_threads_note_names_at_the_same_time():
    known = HeldNames(Line.__new__(Line), lambda _line, _ops: [])
    errors: list[BaseException] = []

    def note(thread: int) -> None:
        try:
            for number in range(5_000):
                known.note(SendEvent(f"{thread}-{number}", "null"))
        except BaseException as error:  # noqa: BLE001 - the test looks at it
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
