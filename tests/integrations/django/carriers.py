"""Real workers of django-tasks-db and of Celery that carry the runs of a real scheduler."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from duly import Duly
from tests.integrations.counter import EffectCounter
from tests.integrations.django.shop import Shop

PACKAGES = {"db": "django-tasks-db", "celery": "django-tasks-fennel"}
HERE = "tests.integrations.django.carried"
SUPERVISED = "tests.integrations.django.supervisor"
DB_WORKER = ("db_worker", "--backend", "db", "--interval", "0.1", "--no-startup-delay")
CELERY = ("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat")


class Carried(Shop):
    """The project, its scheduler, and three slots of the backend that carries its tasks."""

    def __init__(
        self,
        kind: str,
        url: str,
        folder: Path,
        *,
        payments: EffectCounter,
        bills: EffectCounter,
        orders: int,
        redis: str,
    ) -> None:
        if kind == "db":
            self.applications += ("django_tasks_database",)
        self.kind, self.payments, self.orders = kind, payments, orders
        self._folder_of_test = folder
        super().__init__(
            url,
            folder / "shop.log",
            DJANGO_SETTINGS_MODULE=f"{HERE}.settings",
            SHOP_CARRIED_BY=kind,
            SHOP_PAYMENTS=str(payments.port),
            SHOP_BILLS=str(bills.port),
            SHOP_GATE=str(folder / "gate"),
            SHOP_ORDERS=str(orders),
            **({"SHOP_BROKER": redis} if kind == "celery" else {}),
            # On PostgreSQL, a dead worker is recognized by its missing heartbeats.
            DULY_LEASE="3",
            DULY_BEAT="0.5",
        )

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run all of them during the block."""
        with ExitStack() as processes:
            processes.enter_context(self.running("manage.py", "run_scheduler"))
            if self.kind == "celery":
                application = ("-A", "django_tasks_fennel.app", "worker", "--concurrency", "3")
                processes.enter_context(self.running("-m", "celery", *application, *CELERY))
            else:
                for _ in range(3):
                    processes.enter_context(self.running("-m", SUPERVISED, *DB_WORKER))
            yield

    def may_fire(self, seen: Duly) -> bool:
        """Return whether a scheduler has registered the schedules."""
        return len(seen.schedules.list()) == 2 * self.orders

    def open_gate(self, order: int) -> None:
        """Let the task of an order finish."""
        (self._folder_of_test / f"gate-{order}").touch()

    def deliver_again(self, *executions: str) -> None:
        """Deliver executions again that were already delivered."""
        self._do(f"deliver_again(*{executions!r})")

    def resume(self, execution: str) -> None:
        """Have the executions of a killed worker delivered again."""
        if self.kind == "db":
            self._do(f"resume({execution!r})")
        # Celery does so by itself.

    def deliveries(self, execution: str) -> list[tuple[str, float]]:
        """Return how deliveries of an execution ended, and after how many seconds."""
        told = [subject.split("|") for subject, _ in self.payments.effects("delivered")]
        return [(status, int(took) / 1e6) for found, status, took in told if found == execution]

    def _do(self, what: str) -> None:
        self.manage("shell", "--command", f"from {HERE}.again import *; {what}")
