"""Four processes that run each scheduled job once per scheduled time.

uvicorn examples.async_scheduler.main:app --workers 4
curl -X PUT 'http://127.0.0.1:8000/send_email_notification?user_id=1&message=hello'
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from fastapi import FastAPI

from duly.compat.async_scheduler import AsyncScheduler
from examples.async_scheduler.jobs import (
    cleanup_temp_files,
    generate_daily_report,
    send_email_notification,
    send_newsletter_or_fail,
)

scheduler = AsyncScheduler()
EVERY_MINUTE = os.environ.get("EVERY_MINUTE", "* * * * *")


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Every process starts the same scheduler. There is no leader."""
    await scheduler.start()
    await scheduler.add_cron_task(
        task_name="cleanup_temp_files", func=cleanup_temp_files, cron=EVERY_MINUTE
    )
    await scheduler.add_cron_task(
        task_name="generate_daily_report", func=generate_daily_report, cron="35 16 * * *"
    )
    await scheduler.add_cron_task(
        task_name="send_newsletter_or_fail", func=send_newsletter_or_fail, cron=EVERY_MINUTE
    )
    yield
    await scheduler.stop()


app = FastAPI(lifespan=lifespan)


@app.get("/")
async def get_root() -> dict[str, str]:
    """Return a greeting."""
    return {"message": "Hello, World!"}


@app.put("/send_email_notification")
async def put_send_email_notification(
    user_id: int, message: str, seconds: float = 10
) -> dict[str, str]:
    """Schedule a mail. Any one of the processes sends it."""
    await scheduler.add_once_task(
        task_name=f"send_email_notification_{user_id}",
        func=send_email_notification,
        args=(user_id, message),
        execute_time=datetime.now(UTC) + timedelta(seconds=seconds),
    )
    return {"message": f"user {user_id} gets a mail in {seconds:g} seconds"}


@app.get("/logs")
async def get_logs(task_name: str) -> list[dict[str, str]]:
    """Return how the last runs of a task ended."""
    logs = await scheduler.list_task_logs(task_name)
    return [{"at": log.created_at.isoformat(), "status": log.status.value} for log in logs]
