"""Tasks at the top of a module, as those that run in processes must be."""

import os
import time

from duly import Duly
from duly.compat.fastapi_taskflow import TaskManager, task_log

manager = TaskManager(
    duly=Duly(os.environ.get("SHOP_URL", "sqlite:///shop.db")), max_process_workers=1
)


@manager.task(executor="process", persist=True)
def render(page: int) -> tuple[int, float, float]:
    """Say in which process it ran, and when."""
    began = time.time()
    task_log(f"page {page}")
    time.sleep(0.05)
    return os.getpid(), began, time.time()
