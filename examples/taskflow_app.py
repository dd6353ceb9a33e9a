"""An application written for fastapi-taskflow; what changed is where its names come from."""

import os
import sqlite3
import threading
from collections import Counter
from typing import Annotated

from fastapi import Depends, FastAPI

from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, TaskAdmin, TaskManager

db = sqlite3.connect(os.environ.get("SHOP_DB", ":memory:"), check_same_thread=False)
db.isolation_level = None
db_lock = threading.Lock()  # Tasks run on several threads, and share the connection.
db.execute("CREATE TABLE IF NOT EXISTS inventory (id INTEGER PRIMARY KEY, stock INTEGER)")
db.execute("CREATE TABLE IF NOT EXISTS reports (id INTEGER)")


class EmailClient:
    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def send(self, address: str, template: str) -> None:
        self.sent[f"{template} to {address}"] += 1


email_client = EmailClient()


def fetch_stock(product_id: int) -> int:
    return 10 * product_id


def get_user_email(user_id: int) -> str:
    return f"user{user_id}@example.com"


task_manager = TaskManager(
    snapshot_db="tasks.db",
    requeue_pending=True,
)


@task_manager.task(persist=True, requeue_on_interrupt=True)
def build_report(report_id: int) -> None:
    with db_lock:
        db.execute("INSERT INTO reports VALUES (?)", (report_id,))


@task_manager.task(persist=True, requeue_on_interrupt=True)
def sync_inventory(product_id: int) -> None:
    with db_lock:
        db.execute(
            "INSERT INTO inventory (id, stock) VALUES (?, ?)"
            " ON CONFLICT(id) DO UPDATE SET stock = excluded.stock",
            (product_id, fetch_stock(product_id)),
        )


@task_manager.task(retries=3)
def send_welcome_email(user_id: int) -> None:
    email_client.send(get_user_email(user_id), template="welcome")


app = FastAPI()
TaskAdmin(app, task_manager)
Tasks = Annotated[ManagedBackgroundTasks, Depends(task_manager.get_tasks)]


@app.post("/signup/{user_id}")
def signup(user_id: int, tasks: Tasks) -> dict[str, str]:
    return {"task_id": tasks.add_task(send_welcome_email, user_id)}


@app.post("/nightly/{product_id}")
def nightly(product_id: int, tasks: Tasks) -> list[str]:
    return [tasks.add_task(sync_inventory, product_id), tasks.add_task(build_report, product_id)]
