"""Services outside of the database. Their effects cannot be rolled back."""

import asyncio


async def send_mail(order_id: int, key: str) -> None:
    """A mail server. It ignores a second mail with the same key."""
    await asyncio.sleep(0.05)
    print(f"order {order_id}: a receipt is sent ({key})")


async def call_courier(order_id: int) -> None:
    """A courier service. Two calls send two couriers."""
    await asyncio.sleep(0.05)
    print(f"order {order_id}: a courier is on the way")
