"""Leave the rows that django-periodic-tasks would have left. `manage.py shell` runs it."""

from django.conf import settings

from duly.integrations.django.executions import EXECUTION
from tests.integrations.django.carried.tasks import pay
from tests.integrations.django.left_behind import leave_execution, leave_schedule, make_tables


def leave(count: int) -> None:
    """Leave dispatched payments of the admin's schedules, an undispatched one, and a pause.

    Each message is in the queue twice, since that backend delivers at least once.
    """
    make_tables()
    for order in range(count + 1):
        args = [order, f"{settings.GATE}-{order}"]
        schedule = leave_schedule(
            f"old {order}", pay.module_path, cron="0 0 1 1 *", args=args, backend=pay.backend
        )
        execution = leave_execution(schedule, dispatched=int(order < count))
        for _ in range(2 if order < count else 0):
            pay.enqueue(*args, **{EXECUTION: execution})
    leave_schedule("pay-0", pay.module_path, source="code", enabled=False, backend=pay.backend)
