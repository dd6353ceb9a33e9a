"""What lies outside of the database: nobody can roll it back."""

import asyncio


async def send_mail(order_id: int, key: str) -> None:
    """A mail server; it forgets what it is sent twice with one key."""
    await asyncio.sleep(0.05)
    print(f"order {order_id}: a receipt is sent ({key})")


async def call_courier(order_id: int) -> None:
    """A courier; called twice, two of them come."""
    await asyncio.sleep(0.05)
    print(f"order {order_id}: a courier is on the way")
