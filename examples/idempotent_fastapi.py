"""Payments that a client may send again: each Idempotency-Key is carried out once.

uvicorn examples.idempotent_fastapi:app --workers 2
curl -i -X POST -H 'Authorization: Bearer ann' -H 'Idempotency-Key: "order-7"' \\
    'http://127.0.0.1:8000/payments?cents=4200'

The second curl gets the response of the first, with Idempotent-Replayed: true. This example
accepts every token; your application must check them.
"""

import os

from fastapi import FastAPI, HTTPException

from duly.guard import Guard
from duly.integrations.http_idempotency import IdempotencyMiddleware

app = FastAPI()
app.add_middleware(IdempotencyMiddleware, guard=Guard(), required=["/payments"])

taken: list[int] = []


@app.post("/payments", status_code=201)
async def pay(cents: int) -> dict[str, int]:
    """Take a payment. Not called for a repeat, even while the first request still runs."""
    if cents <= 0:
        raise HTTPException(400, "there is nothing to pay")
    taken.append(cents)
    return {"cents": cents, "process": os.getpid()}


@app.get("/payments")
async def total() -> dict[str, int]:
    """Return the payments that this process has taken."""
    return {"count": len(taken), "cents": sum(taken)}
