"""A shop: receipts that may be sent again, and charges that must not happen twice.

`python examples/shop.py` enqueues a few runs, `duly worker examples.shop:app` works on them, and
`duly runs list --app examples.shop:app` shows how they ended.
"""

import asyncio

from duly import Duly, Retry, current

app = Duly()


@app.task(retries=Retry(5, base=1.0), queue="mail")
def send_receipt(order_id: int, email: str) -> str:
    """If the mail server fails, the receipt is sent again later. No receipt is lost."""
    run = current()
    run.log.info("attempt %s to send the receipt of order %s", run.attempt, order_id)
    if order_id % 2 == 0 and run.attempt == 1:
        raise ConnectionError("the mail server hung up")
    return f"receipt {order_id} sent to {email}"


@app.task(on_crash="hold", redact=("card",))
async def charge(order_id: int, cents: int, card: str) -> str:
    """If the worker dies here, it is unknown whether money moved, so a person decides."""
    await asyncio.sleep(0.1)
    return f"order {order_id}: {cents} cents charged to the card ending in {card[-4:]}"


if __name__ == "__main__":
    for order_id in (1, 2, 3):
        # The key makes this safe to repeat: an order is charged once.
        paid = charge.using(key=f"order-{order_id}").enqueue(order_id, 4200, "4242424242424242")
        receipt = send_receipt.using(tags={"order": str(order_id)}).enqueue(
            order_id, f"customer{order_id}@example.com"
        )
        print(f"order {order_id}: charge {paid.id}, receipt {receipt.id}")
