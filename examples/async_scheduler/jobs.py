"""The background tasks of the application."""

import asyncio
import os
import random
from pathlib import Path


async def cleanup_temp_files() -> None:
    """Run every minute."""
    await asyncio.sleep(0.1)
    note("cleanup_temp_files")


async def generate_daily_report() -> None:
    """Run once a day."""
    await asyncio.sleep(0.1)
    note("generate_daily_report")


async def send_newsletter_or_fail() -> None:
    """Run every minute. If a run fails, the next one still runs a minute later."""
    note("send_newsletter_or_fail")
    if random.randrange(2):  # noqa: S311 - a coin
        raise ConnectionError("the mail server hung up")


async def send_email_notification(user_id: int, message: str) -> dict[str, object]:
    """Run once, at the time for which a client scheduled it."""
    await asyncio.sleep(0.1)
    note(f"send_email_notification {user_id} {message}")
    return {"status": "sent", "user_id": user_id}


def note(line: str) -> None:
    """Append a line with what was done and the id of the process that did it."""
    place = os.environ.get("JOBS_LOG")
    text = f"{os.getpid()} {line}\n"
    if place is None:
        print(text, end="")
    else:
        with Path(place).open("a") as log:
            log.write(text)
