"""Many processes of one manager: clients add tasks and sign in, and the outcome is judged."""

import base64
import http.client
import json
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self

from duly import Duly
from tests.compat.fastapi_taskflow.served import ADMIN, KINDS
from tests.integrations.fastapi.server import Server

SERVED = "tests.compat.fastapi_taskflow.served:app"
SCHEDULES = ("tick", "tick#2")
_PAGE = 200
_AT_ONCE = 16
_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


class Answer(NamedTuple):
    """The answer of one of the processes."""

    status: int
    headers: dict[str, str]
    text: str

    @property
    def process(self) -> int:
        return int(self.headers["x-process"])


class Crowd(Server):
    """Uvicorn with several processes of the application: `with Crowd(…) as crowd:`."""

    def __init__(
        self, duly: Duly, folder: Path, *, processes: int, patience: int = 60, **variables: str
    ) -> None:
        """Set how many seconds uvicorn waits for a process that does not answer.

        On a busy machine a process may need long. But uvicorn waits equally long for a process that
        was killed during a health check, and replaces no process meanwhile.
        """
        self.notes = folder / "notes"
        self.notes.touch()
        command = ["uvicorn", SERVED, "--port", "PORT", "--workers", str(processes)]
        command += ["--no-access-log", "--timeout-worker-healthcheck", str(patience)]
        variables = {"SERVED_LOG": str(self.notes), "SERVED_TICKS": "yes"} | variables
        super().__init__(command, folder / "server.log", duly, workers=processes, **variables)

    def begun(self) -> Counter[str]:
        """Return the tasks that have begun, and how often."""
        return Counter(self.notes.read_text().splitlines())

    def ask(self, method: str, path: str, body: str | None = None, /, **headers: str) -> Answer:
        """Send a request over a new connection, so any process may take it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            connection.request(method, path, body, {"Connection": "close", **headers})
            answer = connection.getresponse()
            said = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, said, answer.read().decode())


def visit(crowd: Crowd, pending: str) -> list[str]:
    """Sign in at all processes at once, and act from another page. Return the defects found."""
    encoded = base64.b64encode(":".join(ADMIN).encode()).decode()
    admin = {"Authorization": f"Basic {encoded}"}
    place = f"/guarded/dashboard/runs/{pending}"
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    question = f"/guarded/dashboard/ask?kind=run&verb=cancel&name={pending}"
    page = crowd.ask("GET", question, **admin)
    token = _TOKEN.search(page.text)
    if page.status != http.client.OK or token is None:
        return [f"the page is {page.status}"]
    cookie = page.headers["set-cookie"].partition(";")[0]
    known = admin | form | {"Cookie": cookie}

    def in_all(method: str, path: str, body: str | None, headers: dict[str, str]) -> list[Answer]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = [pool.submit(crowd.ask, method, path, body, **headers) for _ in range(_AT_ONCE)]
            return [each.result() for each in asked]

    looked = in_all("GET", "/guarded?limit=1", None, admin)
    strangers = in_all("GET", "/guarded", None, {})
    forged = in_all("POST", f"{place}/cancel", "csrf=another", known)
    foreign = {"Origin": "http://elsewhere.example"}
    foreigners = in_all("POST", f"/guarded/{pending}/cancel", None, admin | foreign)
    still = json.loads(crowd.ask("GET", f"/tasks/{pending}").text)["status"]
    acted = in_all("POST", f"{place}/cancel", f"csrf={token[1]}", known)
    found = {
        "those who signed in": ({each.status for each in looked}, {200}),
        "strangers": ({each.status for each in strangers}, {401}),
        "forged forms": ({each.status for each in forged}, {403}),
        "pages of others": ({each.status for each in foreigners}, {403}),
        "the task after those": ({still}, {"pending"}),
        "forms of any process": ({each.status for each in acted}, {303}),
    }
    wrong = [f"{who}: {got}, not {due}" for who, (got, due) in found.items() if got != due]
    if len({each.process for each in (*looked, *acted)}) < 2:
        wrong.append("one process has answered everything")
    return wrong


def judge_ticks(duly: Duly, *, lenient: bool) -> tuple[dict[str, int], list[str]]:
    """Return how many instants each schedule had, and the defects found in them.

    If instants come due while no process can fire them, only the latest one runs. `lenient` allows
    for such gaps.
    """
    broken, instants, made = [], {}, Counter()
    for name in SCHEDULES:
        firings = []
        before = None
        while page := duly.schedules.firings(name, limit=_PAGE, before=before):
            firings += [firing for firing in page if firing.reason != "paused"]
            before = page[-1].instant
        times = sorted(firing.instant for firing in firings)
        gaps = {(later - earlier).total_seconds() for earlier, later in pairwise(times)}
        skipped = [firing for firing in firings if not firing.run_id]
        if gaps - {1.0} and not lenient:
            broken.append(f"the seconds between instants of {name} are {sorted(gaps)}")
        if 0.0 in gaps:
            broken.append(f"{name} has an instant twice")
        if skipped and not lenient:
            broken.append(f"{len(skipped)} instants of {name} have no run")
        made += Counter(firing.run_id for firing in firings if firing.run_id)
        instants[name] = len(firings)
    runs = Counter(run.id for run in runs_of(duly, "tick"))
    if runs != made:
        broken.append(f"{runs.total()} runs of {made.total()} instants")
    return instants, broken


def runs_of(duly: Duly, task: str) -> list[Any]:
    """Return all runs of a task."""
    page = duly.runs.list(task=task, limit=_PAGE)
    found = list(page)
    while page.cursor is not None:
        page = duly.runs.list(task=task, limit=_PAGE, cursor=page.cursor)
        found += page
    return found


class Adders:
    """Threads that add tasks of every kind, one after the other, until they are stopped."""

    def __init__(self, crowd: Crowd, *, count: int) -> None:
        self._crowd = crowd
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._number = 0
        self.accepted: dict[str, str] = {}
        """The ids of the added tasks, and their kinds."""
        self._threads = [threading.Thread(target=self._add) for _ in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _add(self) -> None:
        kinds = [f"{kind}-{where}" for kind in KINDS for where in ("loop", "thread")]
        while not self._is_over.wait(0.2):
            with self._lock:
                self._number += 1
                number = self._number
            what = f"{kinds[number % len(kinds)]}/{number}"
            answer = self._crowd.post(f"/add/{what}")
            if answer is not None:
                self.accepted[answer] = what


def kill(crowd: Crowd, adders: Adders, kills: int, *, tasks: int, seconds: float) -> int:
    """Kill random processes, spread over the added tasks. Return the number of kills."""
    chance = random.Random(1)  # noqa: S311 - repeatable
    killed: set[int] = set()
    deadline = time.monotonic() + seconds
    enough = max(1, len(crowd.serving()) // 2)
    while time.monotonic() < deadline:
        if len(killed) == kills and len(adders.accepted) >= tasks:
            break
        found = sorted(crowd.serving() - killed)
        is_due = len(adders.accepted) >= tasks * len(killed) // kills
        if len(killed) < kills and len(found) >= enough and is_due:
            victim = chance.choice(found)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
        time.sleep(chance.uniform(0.05, 0.4))
    return len(killed)


def judge_tasks(
    duly: Duly, crowd: Crowd, accepted: dict[str, str]
) -> tuple[Counter[str], list[str]]:
    """Return how tasks ended, by their kind, and the defects found."""
    allowed = {
        "requeued": {("succeeded", None)},
        "persisted": {("succeeded", None), ("interrupted", "crashed")},
        "plain": {("succeeded", None), ("interrupted", "not_persisted")},
    }
    ends: Counter[str] = Counter()
    broken, known = [], set()
    for kind, good in allowed.items():
        for where in ("loop", "thread"):
            for run in runs_of(duly, f"{kind}-{where}"):
                known.add(run.id)
                end = (run.state.value, run.cause)
                ends[f"{kind} {end[0]}"] += 1
                if end not in good:
                    broken.append(f"a {kind} task is {end}")
    broken += [f"{what} is lost" for run_id, what in accepted.items() if run_id not in known]
    broken += [
        f"{what} has begun {times} times"
        for what, times in crowd.begun().items()
        if times > 1 and not what.startswith("requeued")
    ]
    return ends, broken
