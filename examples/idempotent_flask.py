"""Payments that a client may send again: each Idempotency-Key is carried out once.

flask --app examples.idempotent_flask run --port 8000
curl -i -X POST -H 'Authorization: Bearer ann' -H 'Idempotency-Key: "order-7"' \\
    'http://127.0.0.1:8000/payments?cents=4200'

The second curl gets the response of the first, with Idempotent-Replayed: true. This example
accepts every token; your application must check them.
"""

import os

from flask import Flask, abort, request

from duly.guard import Guard
from duly.integrations.http_idempotency import WSGIIdempotencyMiddleware

app = Flask(__name__)
app.wsgi_app = WSGIIdempotencyMiddleware(app.wsgi_app, Guard(), required=["/payments"])

taken: list[int] = []


@app.post("/payments")
def pay() -> tuple[dict[str, int], int]:
    """Take a payment. Not called for a repeat, even while the first request still runs."""
    cents = request.args.get("cents", 0, int)
    if cents <= 0:
        abort(400, "there is nothing to pay")
    taken.append(cents)
    return {"cents": cents, "process": os.getpid()}, 201


@app.get("/payments")
def total() -> dict[str, int]:
    """Return the payments that this process has taken."""
    return {"count": len(taken), "cents": sum(taken)}
