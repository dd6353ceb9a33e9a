"""Four processes that take orders and run their tasks.

uvicorn examples.fastapi_shop.main:api --workers 4
curl -X POST -H 'Content-Type: application/json' -d '{"item": "tea", "cents": 450}' \
    http://127.0.0.1:8000/orders
curl http://127.0.0.1:8000/orders/1
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, PositiveInt

from duly.integrations.fastapi import DulyTasks, duly_lifespan
from examples.fastapi_shop.database import Order, Session, app, create_tables, engine
from examples.fastapi_shop.tasks import charge


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """The connections are open before the first task runs, and closed after the last has ended."""
    await create_tables()
    yield
    await engine.dispose()


api = FastAPI(lifespan=duly_lifespan(app, inner=lifespan, grace=10))


class NewOrder(BaseModel):
    item: str
    cents: PositiveInt


@api.post("/orders", status_code=201)
async def place_order(new: NewOrder, session: Session, tasks: DulyTasks) -> dict[str, int | str]:
    """The order and the task that charges for it are committed together, or not at all."""
    async with session.begin():
        order = Order(item=new.item, cents=new.cents)
        session.add(order)
        await session.flush()
        charging = tasks.using(connection=session, key=f"order-{order.id}")
        run = await charging.aadd_task(charge, order.id)
    return {"order": order.id, "charge": run.id}


@api.get("/orders/{order_id}")
async def read_order(order_id: int, session: Session) -> dict[str, int | str | bool]:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404, "there is no such order")
    return {"item": order.item, "cents": order.cents, "is_paid": order.is_paid}
