"""Applications that tests serve from processes: one on FastAPI and one on Flask.

Each notes its work in a file. With SERVED_HANGS in the environment, it stops midway.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import BackgroundTasks, FastAPI
from fastapi.responses import StreamingResponse
from flask import Flask

from duly.guard import Guard
from duly.integrations.http_idempotency import IdempotencyMiddleware, WSGIIdempotencyMiddleware

LEASE = 2.0
LOG = Path(os.environ.get("SERVED_LOG", os.devnull))
SECONDS = 600.0 if "SERVED_HANGS" in os.environ else 0.3
guard = Guard(lease=LEASE)

fast = FastAPI()
fast.add_middleware(IdempotencyMiddleware, guard=guard, required=["/strict"], max_body=100)
flask = Flask(__name__)
flask.wsgi_app = WSGIIdempotencyMiddleware(
    flask.wsgi_app, guard, required=["/strict"], max_body=100
)


def note(line: str) -> None:
    """Append a note to the file."""
    with LOG.open("a") as log:
        log.write(f"{line}\n")


@fast.get("/")
async def answer() -> str:
    return "here"


@fast.post("/pay", status_code=201)
async def pay() -> dict[str, int]:
    note("began")
    await asyncio.sleep(SECONDS)
    note("paid")
    return {"process": os.getpid()}


@fast.post("/strict")
async def be_strict() -> str:
    return "fine"


@fast.post("/break")
async def break_down() -> str:
    note("broke")
    raise RuntimeError("the bank hung up")


@fast.post("/later")
async def do_later(tasks: BackgroundTasks) -> str:
    async def later() -> None:
        await asyncio.sleep(SECONDS)
        note("later")

    tasks.add_task(later)
    note("now")
    return "later"


@fast.post("/stream")
async def stream() -> StreamingResponse:
    async def chunks() -> AsyncIterator[str]:
        for number in range(5):
            note(f"chunk {number}")
            yield f"{number}\n"
            await asyncio.sleep(SECONDS)

    return StreamingResponse(chunks())


@flask.get("/")
def answer_too() -> str:
    return "here"


@flask.post("/pay")
def pay_too() -> tuple[dict[str, int], int]:
    note("began")
    time.sleep(SECONDS)
    note("paid")
    return {"process": os.getpid()}, 201


@flask.post("/strict")
def be_strict_too() -> str:
    return "fine"


@flask.post("/break")
def break_down_too() -> str:
    note("broke")
    raise RuntimeError("the bank hung up")
