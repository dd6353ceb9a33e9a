"""Runs `executor="process"` tasks in subprocesses of ours, speaking JSON over two pipes.

A subprocess runs one body at a time, is kept for the next one, and can be killed: a timeout or a
cancel ends it for certain. It dies with its worker.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from duly.clock import monotonic
from duly.context import Port
from duly.core.outcome import (
    Cancelled,
    ErrorText,
    Lost,
    Outcome,
    Raised,
    Returned,
    Snoozed,
    Stopped,
)
from duly.errors import ClaimLost
from duly.registry import Definition, main_module_name
from duly.runtime.attempt import error_text, timed_out
from duly.runtime.hand import Held
from duly.runtime.runners import process_program

_LOOK_SECONDS = 0.2


class ProcessPool:
    """Subprocesses waiting for bodies."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._idle: dict[str, list[_Subprocess]] = {}

    def run(self, held: Held) -> Outcome:
        """Run one body in a subprocess and say how it ended; called on a runner's thread."""
        home = _home(held.definition)
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

    def _run_in(self, child: "_Subprocess", held: Held, home: str) -> Outcome | None:
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
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
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
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._to_child = os.fdopen(ours_out, "w", buffering=1)
        self._from_child = os.fdopen(ours_in, "r")
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="duly-process-reader", daemon=True).start()
        self.is_usable = True

    def run(self, held: Held, port: Port) -> Outcome | None:
        """Run one body; None if the subprocess is gone and the body never began."""
        request = {
            "task": held.definition.name,
            "arguments": held.claim.arguments,
            "claim": list(held.claim),
        }
        has_begun = False
        if not self._tell(request):
            return self._died(has_begun=False)
        while True:
            wait = min(_LOOK_SECONDS, held.overdue_at - monotonic())
            try:
                line = self._lines.get(timeout=max(0.0, wait))
            except queue.Empty:
                ended = self._end_early(held)
                if ended is not None:
                    return ended
                continue
            if not line:
                return self._died(has_begun=has_begun)
            message = json.loads(line)
            if "outcome" in message:
                return _outcome(message)
            has_begun = has_begun or "started" in message
            self._serve(message, held, port)

    def _end_early(self, held: Held) -> Outcome | None:
        if held.cancel is not None:
            self.end()
            return Stopped() if held.cancel == "stopped" else Cancelled("requested")
        if monotonic() >= held.overdue_at:
            self.end()
            return timed_out(held.definition)
        return None

    def _serve(self, message: dict[str, Any], held: Held, port: Port) -> None:
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

    def _tell(self, message: object) -> bool:
        try:
            self._to_child.write(json.dumps(message) + "\n")
        except OSError:
            return False  # It is gone; its pipe will say so too.
        return True

    def _died(self, *, has_begun: bool) -> Outcome | None:
        self.end()
        # It was this body's process and nobody else's, so its death is this run's.
        return Lost(started=True, charged=True) if has_begun else None

    def unfit(self) -> Outcome:
        """Say that a fresh subprocess could not even begin: its import failed, say."""
        status = self._process.returncode
        text = f"the subprocess of the task ended with status {status} before its body began"
        return Raised(ErrorText("ProcessDied", text, "", "process-died"), retryable=True)

    def _read(self) -> None:
        with self._from_child:
            for line in self._from_child:
                self._lines.put(line)
        self._lines.put("")

    def end(self) -> None:
        self.is_usable = False
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._to_child.close()


def _outcome(message: dict[str, Any]) -> Outcome:
    match message:
        case {"outcome": "returned", "result": result}:
            return Returned(result)
        case {"outcome": "raised", "error": error, "rest": [retryable, named, after, cause]}:
            return Raised(ErrorText(*error), retryable, named, after, cause)
        case {"outcome": "snoozed", "after": after}:
            return Snoozed(after)
        case {"outcome": "cancelled", "cause": cause, "reason": reason}:
            return Cancelled(cause, reason)
        case _:
            text = ErrorText("ProtocolError", f"the subprocess answered {message!r:.200}", "", "")
            return Raised(text, retryable=False)


def _home(definition: Definition) -> str:
    """Say where the subprocess finds the function: a module, or the program's own file."""
    module = definition.function.__module__
    if module != "__main__":
        return module
    file = getattr(sys.modules["__main__"], "__file__", "")
    return f"{main_module_name()}={Path(file).resolve()}"
