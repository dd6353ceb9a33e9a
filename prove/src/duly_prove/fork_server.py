"""Forks processes that run a task and kill themselves before or after their n-th statement.

A separate process has everything imported and nothing open, neither threads nor connections. Each
killed process therefore costs a fork instead of a start.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, NamedTuple, Self, cast

from duly import faultpoints
from duly.faultpoints import StatementHook
from duly.limits import TICK_BATCH
from duly.store.ops.steps import RecheckWaits
from duly.store.ops.upkeep import Tick
from duly.worker.process_lifetime import die_with_parent
from duly_prove import crash_tasks

SIDES = ("before", "after")
_DRAIN_SECONDS = 30.0
_STATEMENT_CHARACTERS = 200
_WORD_BYTES = 4096
_NEVER = 14_400.0
"""In seconds. No lease expires by itself, and no heartbeat is among the statements."""


class CrashOrder(NamedTuple):
    """The work of a process, and the statement at which it must die."""

    act: str
    """One of work, mind, send and tick."""
    subject: str
    """The run that the process works on."""
    thread: str
    """The thread whose statements count: each thread has a fixed order, all together have none."""
    side: str
    number: int
    """Counted from 1. With 0 the process survives."""


class CrashOutcome(NamedTuple):
    """The outcome of such a process."""

    pid: int
    status: int
    statement: str | None
    """The statement at which it killed itself, or None."""
    statement_counts: dict[str, int]
    """How many statements each of its threads had executed by then."""

    @property
    def was_killed(self) -> bool:
        """Whether it died by SIGKILL at the intended statement."""
        return self.status == -signal.SIGKILL and self.statement is not None


class ForkServer:
    """A context manager that ends its process on exit."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", "duly_prove.fork_server", str(os.getpid())],
            env=os.environ | {"DULY_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def run(self, order: CrashOrder) -> CrashOutcome:
        """Let a process run until it ends or dies."""
        cast("IO[str]", self._process.stdin).write(json.dumps(order) + "\n")
        line = cast("IO[str]", self._process.stdout).readline()
        if not line:
            message = f"the fork server ended unexpectedly, with status {self._process.wait()}"
            raise RuntimeError(message)
        fate = CrashOutcome._make(json.loads(line))
        if not fate.was_killed and fate.status:
            message = f"a process that was to {order} ended with status {fate.status}"
            raise RuntimeError(message)
        return fate


class StatementKillSwitch:
    """Counts a thread's statements from a certain moment on, and kills the process at one."""

    def __init__(self, order: CrashOrder, last_word: int) -> None:
        self._order = order
        self._outcome_pipe = last_word
        self._counts = False
        self._said: Counter[str] = Counter()

    def begin(self) -> None:
        """Start to count."""
        self._counts = True

    @contextmanager
    def crossing(self, sql: str) -> Iterator[None]:
        """Execute one statement, or die before or after it."""
        is_it = self._counts and self._is_target()
        if is_it and self._order.side == "before":
            self._kill(sql)
        yield
        if is_it:
            self._kill(sql)

    def write_outcome(self, statement: str | None) -> None:
        """Write the outcome to the pipe."""
        word = json.dumps([statement, dict(self._said)])
        os.write(self._outcome_pipe, word.encode())

    def _is_target(self) -> bool:
        thread = threading.current_thread().name
        self._said[thread] += 1
        return thread == self._order.thread and self._said[thread] == self._order.number

    def _kill(self, sql: str) -> None:
        self.write_outcome(" ".join(sql.split())[:_STATEMENT_CHARACTERS])
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Fork processes as requested, one after another."""
    die_with_parent(int(sys.argv[1]))
    watch = _load_statement_watch(os.environ["DULY_URL"])
    for line in sys.stdin:
        fate = _fork(CrashOrder._make(json.loads(line)), watch)
        sys.stdout.write(json.dumps(fate) + "\n")
        sys.stdout.flush()


def _fork(order: CrashOrder, watch: Callable[[StatementHook], None]) -> CrashOutcome:
    reader, writer = os.pipe()
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            die_with_parent(server)
            _run_order(order, watch, writer)
        except BaseException:  # noqa: BLE001 - printed, and reported by the status
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    _, status = os.waitpid(pid, 0)
    statement, said = json.loads(os.read(reader, _WORD_BYTES) or "[null, {}]")
    os.close(reader)
    return CrashOutcome(pid, os.waitstatus_to_exitcode(status), statement, said)


def _run_order(order: CrashOrder, watch: Callable[[StatementHook], None], last_word: int) -> None:
    doom = StatementKillSwitch(order, last_word)
    watch(doom.crossing)
    app = crash_tasks.app
    match order.act:
        case "work":
            _work(doom)
        case "mind":
            _work(doom, crash_tasks.CHILDREN)
        case "send":
            app.store.peek()
            doom.begin()
            app.send_event(crash_tasks.event_of(order.subject), 1)
        case _:
            app.store.peek()
            doom.begin()
            app.store.do(Tick(TICK_BATCH))
            app.store.do(RecheckWaits("", TICK_BATCH))
    app.close()
    doom.write_outcome(None)


def _work(doom: StatementKillSwitch, queues: str | None = None) -> None:
    """Run all that is ready. Statements before the first claim do not count."""
    faultpoints.arm("claim.before_write", doom.begin)
    worker = crash_tasks.app.worker(concurrency=1, queues=queues, lease=_NEVER, beat=_NEVER / 3)
    worker.drain(_DRAIN_SECONDS)


def _load_statement_watch(url: str) -> Callable[[StatementHook], None]:
    """Import all that a forked process needs, and return the installer of the statement hook."""
    store = "duly.store.sqlite" if url.startswith("sqlite:") else "duly.store.postgres"
    for module in ("duly.worker.embedded_worker", f"{store}.store"):
        import_module(module)
    watch: Callable[[StatementHook], None] = import_module(f"{store}.statement_hooks").install_hook
    return watch


if __name__ == "__main__":
    main()
