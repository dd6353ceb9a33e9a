"""duly inside FastAPI: a lifespan, a dependency that adds tasks, and routers."""

from duly.integrations.fastapi.tasks import DulyTasks, Tasks
from duly.integrations.starlette import duly_lifespan

__all__ = ["DulyTasks", "Tasks", "duly_lifespan"]
