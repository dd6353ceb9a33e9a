"""`examples/django_shop` in real `manage.py` processes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from duly import Duly
from tests.servers.processes import kill_with_children, wait_until

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples" / "django_shop"
SOON = 60.0

pytestmark = [pytest.mark.process, pytest.mark.untouched]


class Shop:
    """The project on one database."""

    def __init__(self, url: str, log: Path, folder: Path = SHOP) -> None:
        self._folder = folder
        self._environment = os.environ | {
            "SHOP_DATABASE": url,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        }
        self._log = log

    def manage(self, *arguments: str) -> str:
        """Run a command to its end; give what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self._folder,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def working(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a worker in the meantime."""
        return self.running("duly", "worker", *arguments)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command in the meantime."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_with_children(process)


@pytest.fixture
def shop(store_url, tmp_path):
    shop = Shop(store_url, tmp_path / "worker.log")
    shop.manage("migrate", "--verbosity", "0")
    return shop


def test_what_a_killed_worker_process_had_in_hand_is_done_by_the_next(shop, store_url):
    shop.manage("place_orders", "12", "--seconds", "0.3")
    with closing(Duly(store_url)) as seen, shop.working("-c", "4", "--drain") as worker:

        def running() -> list[int]:
            return [
                each.pid for each in seen.workers.list() if each.state == "live" and each.running
            ]

        wait_until(lambda: bool(running()), seconds=SOON, what="a worker runs tasks")
        os.kill(running()[0], signal.SIGKILL)
        assert worker.wait(timeout=SOON) == 0
        assert {run.state for run in seen.runs.list()} == {"succeeded"}
        assert len(seen.runs.list()) == 12
        assert len(seen.workers.list()) > 1
    assert "shop.tasks.confirm" in shop.manage("duly", "runs", "list", "--limit", "1")
    confirmed = "from shop.models import *; print(Order.objects.filter(confirmations=0).count())"
    assert shop.manage("shell", "--command", confirmed).split()[-1] == "0"


@pytest.mark.stores("sqlite-wal")
def test_a_worker_in_development_begins_anew_when_the_code_changes(store_url, tmp_path):
    folder = tmp_path / "django_shop"
    shutil.copytree(SHOP, folder, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    shop = Shop(store_url, tmp_path / "dev.log", folder)
    shop.manage("migrate", "--verbosity", "0")
    tasks = folder / "shop" / "tasks.py"
    with closing(Duly(store_url)) as seen, shop.running("duly", "dev"):

        def results() -> list[object]:
            return sorted(run.result() for run in seen.runs.list() if run.state == "succeeded")

        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 1, seconds=SOON, what="the order is confirmed")
        tasks.write_text(tasks.read_text().replace("return order.email", 'return "changed"'))

        def has_begun_anew() -> bool:
            # Django has to have seen the file once before it sees that it changed.
            os.utime(tasks)
            return len(seen.workers.list()) > 1

        wait_until(has_begun_anew, seconds=SOON, what="a new worker has begun")
        shop.manage("place_orders", "1")
        wait_until(lambda: len(results()) == 2, seconds=SOON, what="the next one is confirmed")
    assert results() == ["changed", "customer-0@example.com"]
