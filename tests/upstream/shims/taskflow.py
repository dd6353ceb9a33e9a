"""fastapi-taskflow 0.12 as `duly.compat.fastapi_taskflow`; a pytest plugin.

Its tests add tasks to managers that have not started, add functions that nothing decorated, and
call its innermost function `execute_task`. The shims below start a manager, decorate a function and
run a task in those places. They keep no state that a test could mistake for duly's.
"""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from aliases import Alias
from anyio.from_thread import start_blocking_portal

import duly.compat.fastapi_taskflow as ours
from duly import Duly
from duly.errors import RunFailed

OURS = "duly.compat.fastapi_taskflow"
NOT_SHIMMED = {"test_unregistered_func_still_works", "test_unregistered_func_returns_none"}
"""Tests of what becomes of functions that nothing decorated: a shim would hide the difference."""

_running: list[SimpleNamespace] = []
"""The test that runs, with what must be stopped at its end."""


class TaskConfig(SimpleNamespace):
    """The options of a task, for `execute_task` and `registry.get_config`."""


class Registry:
    """The options of tasks by function."""

    def __init__(self, registrar):
        self._registrar = registrar

    def get_config(self, function):
        """Return the options as they are in the definition of the task; None if it is no task."""
        if not self._registrar.has(function):
            return None
        task, eager = self._registrar.get(function)
        found = task.definition
        executors = {"loop": "async", "thread": "thread", "process": "process"}
        return TaskConfig(
            name=found.name.rpartition(":")[2].rpartition(".")[2],
            retries=found.retry.limit,
            delay=found.retry.base,
            backoff=found.retry.factor,
            persist=self._registrar.is_persisted(task),
            priority=found.priority or None,
            queue=found.queue,
            executor=executors[found.executor],
            eager=eager,
        )


class TaskManager(ours.TaskManager):
    """A manager that starts when a task is added, and runs nothing if it was started so."""

    def __init__(self, **options):
        super().__init__(**options)
        self.registry = Registry(self._registrar)

    def add(self, function, args, kwargs, wish):
        """Decorate the function and start, if a test left that out."""
        test = _running[-1]
        if not self.is_task(function) and test.name not in NOT_SHIMMED:
            self.task()(function)
        if self._serving is None:
            self._start_held(test)
        return super().add(function, args, kwargs, wish)

    def _start_held(self, test):
        portal = test.portal()
        for queue in {"default", *(found["name"] for found in self.queue_stats())}:
            self.duly.queues.pause(queue)
        portal.call(self.startup)
        test.ends.append(lambda: portal.call(self.shutdown))


class TaskAdmin(ours.TaskAdmin):
    """Routes that are open to everybody, as fastapi-taskflow's are where no `auth` is given."""

    def __init__(self, app, manager, **options):
        super().__init__(app, manager, **{"auth": _anybody, "hosts": ["testserver"], **options})


def _anybody():
    return "anonymous"


class TaskStore:
    """Gives `execute_task` a place for its record; it holds no other."""

    def __init__(self):
        self._records = {}

    def create(self, *_record):
        """Do nothing: a record exists once a task was added."""

    def get(self, task_id):
        """Return the record of a task that was executed."""
        return self._records[task_id]


async def execute_task(
    func, task_id, config, store, args, kwargs, *, executor_obj=None, logger=None
):
    """Run a function as a task of a manager of its own."""
    place = Path.cwd() / "executed.db"
    options = {name: value for name, value in vars(config).items() if name != "executor"}
    manager = ours.TaskManager(
        duly=Duly(f"sqlite:///{place}"), loggers=None if logger is None else [logger]
    )
    manager.task(**options)(func)
    await manager.startup()
    try:
        ran = await ours.ManagedBackgroundTasks(manager).aadd_task(func, *args, **kwargs)
        with suppress(RunFailed):
            await asyncio.to_thread(manager.duly.runs.get(ran).result, timeout=20)
    finally:
        await manager.shutdown()
    store._records[task_id] = replace(manager.store.get(ran), task_id=task_id)
    manager.duly.close()


Alias(
    "fastapi_taskflow",
    {
        "": ("taskflow", OURS),
        "backends": (OURS,),
        "backends.base": (OURS,),
        "backends.mysql": (),
        "backends.postgres": (),
        "backends.sqlite": (OURS,),
        "dashboard": (),
        "dashboard.sse": (),
        "executor": ("taskflow",),
        "executors": (),
        "executors.async_executor": (),
        "executors.base": (OURS,),
        "executors.process_executor": (OURS,),
        "executors.thread_executor": (),
        "loggers": (OURS,),
        "loggers.base": (OURS,),
        "loggers.file": (OURS,),
        "manager": (),
        "models": ("taskflow", OURS),
        "periodic": (),
        "snapshot": (OURS,),
        "store": ("taskflow",),
        "task_logging": (OURS,),
        "wrapper": (OURS,),
    },
    names={"TaskAdmin", "TaskConfig", "TaskManager", "TaskStore", "execute_task"},
).install()


@pytest.fixture(autouse=True)
def running(request, tmp_path, monkeypatch):
    """A folder for `duly.db`, where fastapi-taskflow keeps tasks in memory, and what starts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DULY_URL", raising=False)
    ends, portals = [], []

    def portal():
        if not portals:
            entered = start_blocking_portal()
            portals.append(entered.__enter__())
            ends.append(lambda: entered.__exit__(None, None, None))
        return portals[0]

    _running.append(SimpleNamespace(name=request.node.name, ends=ends, portal=portal))
    yield
    _running.pop()
    for end in reversed(ends):
        end()
