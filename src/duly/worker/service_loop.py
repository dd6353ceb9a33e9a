"""The only service loop: services do one bounded piece of work and say how long to pause."""

import threading
from typing import Protocol

from duly.clock import jitter, monotonic
from duly.errors import StoreError
from duly.events import EngineFailed, EventBus, StoreFailed, StoreRecovered

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_EARLY_SECONDS = 0.01
"""What is due this soon is done now: one wake-up of the thread instead of two."""


class Service(Protocol):
    """Something that is done again and again."""

    name: str

    def tick(self) -> float:
        """Do one bounded piece of work; return the seconds to pause."""
        ...


class ServiceLoop:
    """Runs services on one thread, each when its pause is over or someone hurries it."""

    def __init__(self, name: str, services: list[Service], bus: EventBus) -> None:
        self._services = services
        self._bus = bus
        self._due = {id(service): 0.0 for service in services}
        self._failures = dict.fromkeys(self._due, 0)
        self._hurried: dict[int, float] = {}
        self._woken = threading.Condition()
        self._ended = False
        self.name = name
        self.turn_began_at: float | None = None
        """When (monotonic) the tick under way began; None between ticks."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to tick."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether its thread runs."""
        return self._thread.is_alive()

    def hurry(self, service: Service, *, within: float = 0.0) -> None:
        """Make a service due now, or within some seconds."""
        key, due = id(service), monotonic() + within
        with self._woken:
            self._hurried[key] = min(due, self._hurried.get(key, due))
            self._woken.notify()

    def stop(self, *, wait: bool = True) -> None:
        """End the loop after the tick under way, and wait for that unless it hangs."""
        with self._woken:
            self._ended = True
            self._woken.notify()
        if wait and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            now = monotonic()
            with self._woken:
                for service, due in self._hurried.items():
                    # A service that backs off from a broken store keeps its pause.
                    if not self._failures[service]:
                        self._due[service] = min(due, self._due[service])
                self._hurried.clear()
                wait = min(self._due.values()) - now
                if not self._ended and wait > 0:
                    self._woken.wait(wait)
                if self._ended:
                    return
            self._tick_due()

    def _tick_due(self) -> None:
        for service in self._services:
            key = id(service)
            with self._woken:
                due = self._due[key]
                if not self._failures[key]:
                    due = min(due, self._hurried.get(key, due))
            if due <= monotonic() + _EARLY_SECONDS:
                with self._woken:
                    self._hurried.pop(key, None)
                self.turn_began_at = monotonic()
                pause = self._tick_one(service)
                self.turn_began_at = None
                self._due[key] = monotonic() + pause

    def _tick_one(self, service: Service) -> float:
        key = id(service)
        try:
            pause = service.tick()
        except StoreError as error:
            self._failures[key] += 1
            longest = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** min(self._failures[key], 10))
            pause = longest * (0.5 + jitter() / 2)
            self._bus.emit(StoreFailed(service.name, str(error), pause))
            return pause
        except Exception as error:  # noqa: BLE001 - one broken service must not end the others
            self._bus.emit(EngineFailed(service.name, repr(error)))
            return _LONGEST_PAUSE
        if self._failures[key]:
            self._failures[key] = 0
            self._bus.emit(StoreRecovered(service.name))
        return pause
