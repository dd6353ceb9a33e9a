"""The tasks that the shop runs after it has answered a request."""

import os

from sqlalchemy import func, select

from duly import current
from duly.integrations.sqlalchemy import run_session
from examples.fastapi_shop import outside
from examples.fastapi_shop.database import Charge, Order, Tally, app


@app.task(transaction=True, retries=3)
def charge(order_id: int) -> None:
    """Exactly once: the rows, the enqueued runs and the end of this run are one transaction."""
    with run_session() as session:
        order = session.get_one(Order, order_id)
        order.is_paid = True
        session.add(Charge(order_id=order.id, cents=order.cents))
    send_receipt.enqueue(order_id)
    book_courier.enqueue(order_id)


@app.task(retries=5)
async def send_receipt(order_id: int) -> None:
    """At least once: if this process dies here, another one sends the mail with the same key."""
    await outside.send_mail(order_id, current().effect_key())


@app.task(on_crash="hold")
async def book_courier(order_id: int) -> None:
    """At most once: if this process dies here, the run ends as interrupted and a person decides."""
    await outside.call_courier(order_id)


@app.cron(
    os.environ.get("SHOP_TALLY", "* * * * *"),
    seconds_field="first",
    name="tally",
    transaction=True,
    misfire="all",
    overlap="allow",
)
def tally() -> None:
    """Once per minute, with any number of processes. Missed minutes are made up later."""
    with run_session() as session:
        found = session.execute(select(func.count(), func.coalesce(func.sum(Charge.cents), 0)))
        orders, cents = found.one()
        session.add(Tally(run_id=current().run_id, orders=orders, cents=cents))
