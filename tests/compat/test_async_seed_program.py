"""The article's application, moved to duly: four processes, killed, and each mail that waited."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duly import Duly
from tests.compat.test_async_cutover import LeftBehind
from tests.compat.test_async_scheduler import ROOT, _answers
from tests.servers.processes import free_port, wait_until

SOON = 60.0
USERS = range(20)

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@contextmanager
def serving(url: str, log: Path) -> Iterator[None]:
    """Serve the example from four processes, all of which are killed in the end."""
    port = free_port()
    environment = os.environ | {
        "DULY_URL": url,
        "JOBS_LOG": str(log),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    command = [sys.executable, "-m", "uvicorn", "examples.async_scheduler.main:app"]
    command += ["--workers", "4", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, env=environment, cwd=log.parent, start_new_session=True)
    try:
        wait_until(lambda: _answers(port, "/"), seconds=SOON, what="the server answers")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def test_mails_that_waited_in_its_table_are_sent_though_all_processes_are_killed(
    store_url, tmp_path
):
    log = tmp_path / "jobs.log"
    log.touch()
    left = LeftBehind(store_url)
    function = "examples.async_scheduler.jobs.send_email_notification"
    for user in USERS:
        due = datetime.now(UTC) + timedelta(seconds=user % 4)
        left.once(f"send_email_notification_{user}", due, user, "hello", task_func=function)

    with serving(store_url, log):
        wait_until(lambda: bool(mails(log)), seconds=SOON, what="the first mail is sent")
    with serving(store_url, log):
        wait_until(lambda: set(mails(log)) == set(USERS), seconds=SOON, what="all mails are sent")

    with closing(Duly(store_url)) as app:
        runs = [run for run in app.runs.list(limit=200) if "hello" in run.record.arguments]
    assert left.active() == set()
    assert len(runs) == len(USERS)
    # A mail whose process was killed before that was on record is sent again, and no other.
    assert mails(log).total() <= sum(run.record.claim_number for run in runs)


def mails(log: Path) -> Counter[int]:
    words = (line.split() for line in log.read_text().splitlines())
    return Counter(int(word[2]) for word in words if word[1] == "send_email_notification")
