"""Code of the store that must not be struck, in a thread into which exceptions are thrown."""

import ctypes
import threading
import time

import pytest

from duly.interrupts import allow_interrupts, defer_interrupts, disallow_interrupts
from tests.servers.processes import wait_until
from tests.strikes import Struck

TIMEOUT = 20.0

_throw = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_throw.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Body(threading.Thread):
    """A thread that may be struck, and enters a shielded block when it is told to."""

    def __init__(self, inside):
        super().__init__(daemon=True)
        self.shield = None
        self.exposed = threading.Event()
        self.may_enter = threading.Event()
        self.was_entered = False
        self.was_struck = False
        self._inside = inside
        self.start()

    def run(self):
        self.shield = allow_interrupts()
        self.exposed.set()
        try:
            self.may_enter.wait(TIMEOUT)
            with defer_interrupts():
                self.was_entered = True
                self._inside()
            for _ in range(100):
                time.sleep(0)
        except Struck:
            self.was_struck = True
        finally:
            disallow_interrupts()

    def strike(self):
        return self.shield.interrupt(lambda: _throw(self.ident, Struck))


def test_an_exception_thrown_while_a_thread_waits_for_its_shield_does_not_strike_inside_it():
    body = Body(inside=lambda: None)
    assert body.exposed.wait(TIMEOUT)

    def throw_when_it_waits():
        body.may_enter.set()
        time.sleep(0.05)  # Long enough to reach the shield; if not, the test shows nothing.
        _throw(body.ident, Struck)

    body.shield.interrupt(throw_when_it_waits)
    body.join(TIMEOUT)

    assert (body.was_struck, body.was_entered) == (True, False)


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_is_thrown_into_a_thread_that_shields_itself(depth):
    inside, go_on = threading.Event(), threading.Event()

    def nested():
        for _ in range(depth - 1):
            with defer_interrupts():
                pass
        inside.set()
        go_on.wait(TIMEOUT)

    body = Body(inside=nested)
    body.may_enter.set()
    assert inside.wait(TIMEOUT)

    assert not body.strike()

    go_on.set()
    body.join(TIMEOUT)
    assert not body.was_struck


def test_a_thread_that_was_struck_as_it_took_its_shield_can_be_struck_again():
    struck = []

    class Stubborn(Body):
        def run(self):
            self.shield = allow_interrupts()
            self.exposed.set()
            for _ in range(2):
                try:
                    self.may_enter.wait(TIMEOUT)
                    with defer_interrupts():
                        pass
                    while True:
                        time.sleep(0)
                except Struck:
                    struck.append(True)

    body = Stubborn(inside=None)
    assert body.exposed.wait(TIMEOUT)

    def throw_when_it_waits():
        body.may_enter.set()
        time.sleep(0.05)
        _throw(body.ident, Struck)

    body.shield.interrupt(throw_when_it_waits)
    wait_until(lambda: struck == [True], seconds=TIMEOUT, what="the first strike")
    wait_until(body.strike, seconds=TIMEOUT, what="the shield to be free")
    body.join(TIMEOUT)

    assert struck == [True, True]
