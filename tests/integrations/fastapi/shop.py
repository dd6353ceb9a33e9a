"""The example shop as tests serve it: a separate process counts its external effects."""

import asyncio
import os

from duly.integrations.fastapi import duly_lifespan
from examples.fastapi_shop import outside
from tests.integrations.counter import tell

PORT = int(os.environ["COUNTER_PORT"])
SECONDS = float(os.environ.get("OUTSIDE_SECONDS", "0.05"))


async def send_mail(order_id: int, _key: str) -> None:
    await _take_part("mail", order_id)


async def call_courier(order_id: int) -> None:
    await _take_part("courier", order_id)


async def _take_part(what: str, order_id: int) -> None:
    await asyncio.to_thread(tell, PORT, f"{what}-begun", order_id)
    await asyncio.sleep(SECONDS)
    await asyncio.to_thread(tell, PORT, f"{what}-ended", order_id)


outside.send_mail, outside.call_courier = send_mail, call_courier

from examples.fastapi_shop import main  # noqa: E402 - after the external effects are replaced

app = main.api
if "SHOP_LEASE" in os.environ:
    # Take over the runs of a killed process sooner. The rest of the example is unchanged.
    lease = float(os.environ["SHOP_LEASE"])
    app.router.lifespan_context = duly_lifespan(
        main.app, inner=main.lifespan, grace=10, lease=lease, beat=lease / 3
    )
