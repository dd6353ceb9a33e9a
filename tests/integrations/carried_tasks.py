"""Tasks that the workers of any other engine carry."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

from duly import Duly, Retry, current
from duly.carrier import Carrier
from tests.integrations.counter import tell


def define(app: Duly, carrier: Carrier) -> SimpleNamespace:
    """Define them in an application."""

    @app.task(carrier=carrier, name="pay")
    def pay(order_id: int, port: int) -> int:
        tell(port, "began", order_id)
        time.sleep(0.2)
        tell(port, "ended", order_id)
        return order_id

    @app.task(carrier=carrier, name="linger")
    def linger(order_id: int, port: int, gate: str) -> int:
        tell(port, "began", order_id)
        while not Path(gate).exists():
            time.sleep(0.02)
        tell(port, "ended", order_id)
        return os.getpid()

    @app.task(carrier=carrier, name="flaky", retries=Retry(2, base=0.05, jitter=False))
    def flaky(port: int) -> int:
        tell(port, "tried", current().run_id)
        if current().attempt < 3:
            raise ConnectionError("away")
        return current().attempt

    @app.task(carrier=carrier, name="broken")
    def broken() -> None:
        raise ValueError("no such order")

    @app.task(carrier=carrier, name="once", on_crash="hold")
    def once(order_id: int, port: int, gate: str) -> None:
        tell(port, "began", order_id)
        while not Path(gate).exists():
            time.sleep(0.02)

    @app.task(name="ours")
    def ours(order_id: int) -> int:
        return order_id

    return SimpleNamespace(pay=pay, linger=linger, flaky=flaky, broken=broken, once=once, ours=ours)
