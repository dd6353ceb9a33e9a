"""A worker process: `python -m …delivery_worker URL TASK EXECUTION…`.

It delivers the given executions one after the other, as another backend would. Without executions
it runs queued runs, as a duly worker does.
"""

import sys

from tests.integrations.django.project import using


def main(url: str, name: str, executions: list[str]) -> None:
    """Deliver the executions."""
    with using(default=url):
        from tests.integrations.django import tasks  # noqa: PLC0415 - needs settings

        task = getattr(tasks, name)
        for execution in executions:
            task.call(_periodic_tasks_execution_id=execution)
        if not executions:
            task.get_backend().app.worker().drain(timeout=60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
