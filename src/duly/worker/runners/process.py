"""Runs `executor="process"` tasks in subprocesses of ours, speaking JSON over two pipes.

A subprocess runs one body at a time, is kept for the next one, and can be killed: a timeout or a
cancel ends it for certain, with everything that its body has started. It dies with its worker.
"""

import json
import math
import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from duly.clock import monotonic, new_id
from duly.context import WorkerPort
from duly.core.outcome import (
    Cancelled,
    ErrorText,
    Lost,
    Outage,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Stopped,
)
from duly.errors import ClaimLost
from duly.registry import Definition, main_module_name
from duly.worker.attempt import error_text, timeout_outcome
from duly.worker.inflight import InFlightClaim
from duly.worker.process_lifetime import exit_text
from duly.worker.runners import process_program
from duly.worker.watchdog_program import kill_marked
from duly.worker.worker_program import STARTED_BY, started_by

_LOOK_SECONDS = 0.2
_PIECE_BYTES = 1 << 16


class ProcessPool:
    """Subprocesses waiting for bodies."""

    def __init__(self, port: WorkerPort) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Subprocess]] = {}

    def run(self, held: InFlightClaim) -> Outcome:
        """Run one body in a subprocess and say how it ended; called on a runner's thread."""
        home = _import_source(held.definition)
        while (child := self._get(home)) is not None:
            outcome = self._run_in(child, held, home)
            if outcome is not None:
                return outcome
            # It had died while it waited: the body has not begun, so another one may have it.
        try:
            child = _Subprocess(home)
        except OSError as error:
            return Raised(error_text(error), retryable=True)
        return self._run_in(child, held, home) or child.unfit()

    def _run_in(self, child: "_Subprocess", held: InFlightClaim, home: str) -> Outcome | None:
        outcome = child.run(held, self._port)
        if child.is_usable:
            with self._lock:
                self._idle.setdefault(home, []).append(child)
        return outcome

    def stop(self) -> None:
        """End the subprocesses that wait."""
        with self._lock:
            children = [child for idle in self._idle.values() for child in idle]
            self._idle.clear()
        for child in children:
            child.end()

    def _get(self, home: str) -> "_Subprocess | None":
        with self._lock:
            idle = self._idle.get(home)
            return idle.pop() if idle else None


class _Subprocess:
    def __init__(self, home: str) -> None:
        self._name = new_id()
        theirs_in, self._to_child = os.pipe()
        try:
            self._from_child, theirs_out = os.pipe()
        except OSError:
            os.close(theirs_in)
            os.close(self._to_child)
            raise
        os.set_blocking(self._to_child, False)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [
                    sys.executable,
                    "-m",
                    process_program.__name__,
                    str(theirs_in),
                    str(theirs_out),
                    str(os.getpid()),
                    home,
                ],
                pass_fds=(theirs_in, theirs_out),
                stdin=subprocess.DEVNULL,
                env=os.environ
                | {
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                    STARTED_BY: started_by(self._name),
                },
            )
        except BaseException:
            self._close()
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        self._unsent = b""
        self._unread = b""
        self.is_usable = True

    def run(self, held: InFlightClaim, port: WorkerPort) -> Outcome | None:
        """Run one body; None if the subprocess is gone and the body never began."""
        request = {
            "task": held.definition.name,
            "arguments": held.claim.arguments,
            "claim": list(held.claim),
        }
        has_begun = False
        self._tell(request)
        while True:
            line = self._read_line(min(_LOOK_SECONDS, held.overdue_at - monotonic()))
            if line is None:
                return self._died(has_begun=has_begun)
            if line:
                message = json.loads(line)
                if "outcome" in message:
                    return _outcome(message)
                has_begun = has_begun or "started" in message
                self._serve(message, held, port)
            ended = self._end_early(held)
            if ended is not None:
                return ended

    def _end_early(self, held: InFlightClaim) -> Outcome | None:
        if held.cancel is not None:
            self.end()
            return Stopped() if held.cancel == "stopped" else Cancelled("requested")
        if monotonic() >= held.overdue_at:
            self.end()
            return timeout_outcome(held.definition)
        return None

    def _serve(self, message: dict[str, Any], held: InFlightClaim, port: WorkerPort) -> None:
        match message:
            case {"progress": [fraction, text]}:
                port.progress(held.claim, fraction, text)
            case {"log": [level, text]}:
                port.log(held.claim, level, text)
            case {"ask": "cancelled"}:
                try:
                    self._tell(port.is_cancelled(held.claim))
                except ClaimLost:
                    self._tell(None)

    def _tell(self, message: object) -> None:
        """Send a line, or as much of it as there is room for: the rest follows while we read."""
        self._unsent += f"{json.dumps(message)}\n".encode()
        self._send()

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._to_child, self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""  # It is gone; its pipe will say so too.

    def _read_line(self, seconds: float) -> bytes | None:
        """Return the next line: an empty one if none came in time, None if the process is gone."""
        until = monotonic() + seconds
        while b"\n" not in self._unread:
            # Whether it has ended is asked first, so that its last words have come by then. Its
            # pipe does not tell: processes that the body has forked may have it, too.
            has_ended = self._process.poll() is not None
            left = 0.0 if has_ended else max(0.0, until - monotonic())
            if self._has_come_within(left):
                piece = os.read(self._from_child, _PIECE_BYTES)
                if not piece:
                    return None
                self._unread += piece
            elif has_ended:
                return None
            elif monotonic() >= until:
                return b""
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _has_come_within(self, seconds: float) -> bool:
        """Wait until there is something to read; send meanwhile."""
        poll = select.poll()
        poll.register(self._from_child, select.POLLIN)
        if self._unsent:
            poll.register(self._to_child, select.POLLOUT)
        ready = {descriptor for descriptor, _ in poll.poll(math.ceil(seconds * 1000))}
        if self._to_child in ready:
            self._send()
        return self._from_child in ready

    def _died(self, *, has_begun: bool) -> Outcome | None:
        self.end()
        # It was this body's process and nobody else's, so its death is this run's.
        return Lost(started=True, charged=True) if has_begun else None

    def unfit(self) -> Outcome:
        """Say that a fresh subprocess could not even begin: its import failed, say."""
        how = exit_text(self._process.returncode)
        text = f"the subprocess of the task {how} before the task started"
        return Raised(ErrorText("ProcessDied", text, "", "process-died"), retryable=True)

    def end(self) -> None:
        """End the subprocess, and everything that it has started."""
        self.is_usable = False
        self._process.kill()
        self._process.wait()
        kill_marked(self._name)
        self._close()

    def _close(self) -> None:
        os.close(self._to_child)
        os.close(self._from_child)


def _outcome(message: dict[str, Any]) -> Outcome:
    match message:
        case {"outcome": "returned", "result": result}:
            return Returned(result)
        case {"outcome": "raised", "error": error, "rest": [retryable, named, after, cause]}:
            return Raised(ErrorText(*error), retryable, named, after, cause)
        case {"outcome": "outage", "error": error}:
            return Outage(ErrorText(*error))
        case {"outcome": "snoozed", "after": after}:
            return Snoozed(after)
        case {"outcome": "cancelled", "cause": cause, "reason": reason}:
            return Cancelled(cause, reason)
        case _:
            text = ErrorText("ProtocolError", f"the subprocess answered {message!r:.200}", "", "")
            return Raised(text, retryable=False)


def _import_source(definition: Definition) -> str:
    """Say where the subprocess finds the function: a module, or the program's own file."""
    module = definition.function.__module__
    if module != "__main__":
        return module
    file = getattr(sys.modules["__main__"], "__file__", "")
    return f"{main_module_name()}={Path(file).resolve()}"
