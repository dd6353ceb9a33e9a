"""Tasks at the top level of a module, as required for tasks that run in processes."""

import os
import time

from duly import Duly
from duly.compat.fastapi_taskflow import TaskManager, task_log

manager = TaskManager(
    duly=Duly(os.environ.get("SHOP_URL", "sqlite:///shop.db")), max_process_workers=1
)


@manager.task(executor="process", persist=True)
def render(page: int) -> tuple[int, float, float]:
    """Return the id of the process, and the times of the start and the end."""
    began = time.time()
    task_log(f"page {page}")
    time.sleep(0.05)
    return os.getpid(), began, time.time()
