"""A small shop with something to see on every page of the dashboard."""

import threading
from collections import Counter
from typing import Any

from duly import Duly, current, gather, sleep, step


class Shop:
    """An application and its tasks. `released` ends the task that is running."""

    def __init__(self, url: str) -> None:
        self.app = Duly(url)
        self.released = threading.Event()
        self.started = threading.Event()
        self.broken = True
        self.packed = 0
        self.charged: Counter[int] = Counter()
        self._define()

    def _define(self) -> None:
        app = self.app

        @app.task(name="shop.mail:send_receipt", queue="mail", redact=("card",))
        def send_receipt(order_id: int, email: str, card: str = "") -> str:
            return f"sent {order_id} to {email}"

        @app.task(name="shop.orders:charge", retries=0)
        def charge(order_id: int, cents: int = 100) -> int:
            current().log.info(f"charging {cents} cents for order {order_id}")
            if self.broken:
                raise ConnectionError("the bank does not answer: timed out after 10 s")
            self.charged[order_id] += 1
            return cents

        @app.task(name="shop.orders:pack")
        def pack(item: str) -> str:
            return f"{item} packed"

        @app.task(name="shop.orders:fulfil")
        def fulfil(order_id: int) -> dict[str, Any]:
            def reserve() -> str:
                self.packed += 1
                return "shelf 7"

            shelf = step("reserve-stock", reserve)
            sleep("let-them-think", 0.05)
            parcels = gather([pack.call("lamp"), pack.call("rug")])

            def label() -> str:
                if self.broken:
                    raise ValueError("no label printer is online")
                return "label 12"

            return {"shelf": shelf, "parcels": parcels, "label": step("print-label", label)}

        @app.task(name="shop.reports:nightly", queue="reports")
        def nightly() -> None:
            current().progress(0.4, "reading 40 of 100 accounts")
            current().log.info("began to read accounts")
            self.started.set()
            self.released.wait(30)

        @app.task(name="shop.reports:nothing", queue="reports")
        def nothing(count: int = 0) -> int:
            return count

        self.send_receipt, self.charge, self.pack = send_receipt, charge, pack
        self.fulfil, self.nightly, self.nothing = fulfil, nightly, nothing

    def fill(self) -> None:
        """Do a day's work with every kind of failure."""
        app = self.app
        app.enqueue_many(
            self.send_receipt.call(number, f"customer{number}@example.com", card="4111-2222")
            for number in range(40)
        )
        app.enqueue_many(self.charge.call(number) for number in range(12))
        self.send_receipt.using(key="order-7", tags={"tenant": "acme"}).enqueue(7, "a@b.c")
        self.fulfil.enqueue(4711)
        self.nothing.enqueue(2**60 + 1)
        app.schedules.add("nightly-report", self.nothing, cron="0 3 * * *", tz="Europe/Berlin")
        app.schedules.add("poll-the-bank", self.nothing, every=900)
        app.schedules.add("half-hourly-sync", self.nothing, cron="*/30 * * * *", tz="UTC")
        app.worker().drain()
        app.schedules.pause("poll-the-bank", actor="ann", reason="the bank is down")
        app.schedules.run_now("nightly-report", actor="ann")
        self.send_receipt.using(delay=3600).enqueue(99, "later@example.com")
        app.queues.pause("reports", actor="bob", reason="the disk is full")
        app.worker().drain()
