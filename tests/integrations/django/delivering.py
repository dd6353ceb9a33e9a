"""A worker of another backend, as a process: `python -m …delivering URL EXECUTION…`.

It delivers every execution that it is given, one after the other.
"""

import sys

from tests.integrations.django.project import using


def main(url: str, executions: list[str]) -> None:
    """Deliver them."""
    with using(default=url):
        from tests.integrations.django import tasks  # noqa: PLC0415 - needs settings

        for execution in executions:
            tasks.count.call(_periodic_tasks_execution_id=execution)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
