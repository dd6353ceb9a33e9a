"""duly for FastAPI: a lifespan, a dependency that adds tasks, and routers."""

from duly.integrations.extras import missing

try:
    from duly.integrations.fastapi.health import health_router
    from duly.integrations.fastapi.router import duly_router
    from duly.integrations.fastapi.tasks import DulyTasks, Tasks
    from duly.integrations.starlette import duly_lifespan
except ModuleNotFoundError as error:
    raise missing(error, "fastapi") from error

__all__ = ["DulyTasks", "Tasks", "duly_lifespan", "duly_router", "health_router"]
