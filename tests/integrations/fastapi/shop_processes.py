"""The example shop in many processes that are killed or restarted while customers order."""

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from duly import Duly
from tests.integrations.counter import EffectCounter
from tests.integrations.fastapi.judgement import Books, Judgement
from tests.integrations.fastapi.server import Customers, Server

_SHOP = "tests.integrations.fastapi.shop:app"
_CUSTOMERS = 2
_ORDERS_PER_KILL = 2
"""Each order makes three runs."""
_PAUSE_SECONDS = 0.2
"""After each order of each customer."""


class Shop:
    """An open shop: its processes, its customers and its books."""

    def __init__(self, server: Server, customers: Customers, books: Books) -> None:
        self.server = server
        self.customers = customers
        self._books = books
        self._half = len(server.serving()) // 2

    def kill(self, kills: int, *, seconds: float) -> int:
        """Kill serving processes one after the other, at random moments.

        Return how many were killed. A process is killed only while half of the processes serve
        and have taken orders since the last kill. If processes died as they started, a run that
        each of them claims first would correctly be given up as a poison run.
        """
        chance = random.Random(1)  # noqa: S311 - repeatable
        killed: set[int] = set()
        deadline = time.monotonic() + seconds
        while len(killed) < kills and time.monotonic() < deadline:
            found = sorted(self.server.serving() - killed)
            orders_due = len(killed) * _ORDERS_PER_KILL
            if len(found) >= self._half and len(self.customers.answers) >= orders_due:
                victim = chance.choice(found)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed.add(victim)
            time.sleep(chance.uniform(0.05, 0.4))
        return len(killed)

    def restart(self) -> None:
        """Replace all processes, one after the other."""
        before = self.server.serving()
        os.kill(self.server.supervisor(), signal.SIGHUP)
        self.server.wait_until_all_serve(but=before)

    def close(self, *, seconds: float) -> Judgement:
        """Stop the customers, finish their orders, and check the books."""
        self.customers.leave()
        self._books.wait_until_final(seconds=seconds)
        self.server.stop()
        return self._books.judge(self.customers.answers, unanswered=self.customers.unanswered)


@contextmanager
def open_shop(
    duly: Duly,
    counter: EffectCounter,
    folder: Path,
    *,
    processes: int,
    options: Sequence[str] = (),
    **variables: str,
) -> Iterator[Shop]:
    """Serve the shop from this many processes."""
    command = ["uvicorn", _SHOP, "--port", "PORT", "--workers", str(processes), "--no-access-log"]
    command += options
    with (
        Server(
            command,
            folder / "shop.log",
            duly,
            workers=processes,
            COUNTER_PORT=str(counter.port),
            SHOP_TALLY="* * * * * *",
            **variables,
        ) as server,
        Customers(server, count=_CUSTOMERS, pause=_PAUSE_SECONDS) as customers,
    ):
        server.wait_until_all_serve()
        yield Shop(server, customers, Books(duly, counter))
