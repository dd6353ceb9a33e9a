"""The subprocess of a process runner: reads requests, runs bodies, writes outcomes."""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import sys
import threading
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TextIO

from duly.clock import monotonic
from duly.context import RunContext, TransactionPort, set_current
from duly.core.outcome import Cancelled, Outage, Outcome, Raised, Returned, Snoozed, TimedOut
from duly.core.record import Claim
from duly.errors import ClaimLost
from duly.limits import LEASE_MARGIN_SECONDS, LEASE_SECONDS
from duly.registry import Definition, Registry
from duly.worker.attempt import await_body, call_body
from duly.worker.garbage_collection import collect_as_usual, collect_less
from duly.worker.process_lifetime import die_with_parent
from duly.worker.step_drain import check_steps


class PipePort:
    """Passes what the body says to the worker.

    A thread that a body has left behind says nothing: the worker would take it for the next body's,
    and an answer that the thread reads could be the request for that.
    """

    store = None
    registry = None
    task_transactions: TransactionPort | None = None

    def __init__(self, requests: TextIO, replies: TextIO) -> None:
        self._requests = requests
        self._replies = replies
        self._lock = threading.Lock()
        self._claim: Claim | None = None
        """The claim of the body that is running."""

    def begin(self, claim: Claim) -> None:
        """Tell the worker that a body begins."""
        with self._lock:
            self._claim = claim
            self._send({"started": True})

    def end(self, outcome: dict[str, Any]) -> None:
        """Tell the worker how the body has ended."""
        with self._lock:
            self._claim = None
            self._send(outcome)

    def progress(self, claim: Claim, fraction: float | None, text: str | None) -> None:
        """Pass progress on."""
        with self._lock:
            if claim is self._claim:
                self._send({"progress": [fraction, text]})

    def log(self, claim: Claim, level: str, message: str) -> None:
        """Pass a log line on."""
        with self._lock:
            if claim is self._claim:
                self._send({"log": [level, message]})

    def is_cancelled(self, claim: Claim) -> bool:
        """Ask the worker."""
        answer = None
        with self._lock:
            if claim is self._claim:
                self._send({"ask": "cancelled"})
                answer = json.loads(self._requests.readline())
        if answer is None:
            raise ClaimLost(f"run {claim.run_id}", claim.claim_number)
        return bool(answer)

    def wait_until(self, claim: Claim, deadline: float | None) -> float:  # noqa: ARG002
        """Return until when this body may wait for the store; the worker enforces its timeout."""
        with suppress(ClaimLost):
            if not self.is_cancelled(claim):
                return monotonic() + LEASE_SECONDS - LEASE_MARGIN_SECONDS
        return 0.0

    def _send(self, message: dict[str, Any]) -> None:
        self._replies.write(json.dumps(message) + "\n")


def main() -> None:
    """Serve until the worker closes the pipe."""
    requests_at, replies_at, parent, home = sys.argv[1:]
    die_with_parent(int(parent))
    _keep_to_itself(int(requests_at), int(replies_at))
    requests = os.fdopen(int(requests_at), "r")
    port = PipePort(requests, os.fdopen(int(replies_at), "w", buffering=1))
    collect_as_usual()
    definitions = _definitions(home)
    collect_less()
    for line in requests:
        request = json.loads(line)
        port.end(_describe(_run(definitions[request["task"]], request, port)))


def _keep_to_itself(*descriptors: int) -> None:
    """Keep descriptors out of programs that a body starts and processes that it forks.

    In a forked process, whose objects may still close them by their numbers, they lead nowhere.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)

    def replace() -> None:
        for descriptor in descriptors:
            os.dup2(nowhere, descriptor, inheritable=False)

    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - the standard library's
    os.register_at_fork(after_in_child=replace)


def _run(definition: Definition, request: dict[str, Any], port: PipePort) -> Outcome:
    claim = Claim._make(request["claim"])
    port.begin(claim)
    return copy_context().run(
        _run_within, RunContext(claim, port, None), definition, claim.arguments
    )


def _run_within(context: RunContext, definition: Definition, arguments: str) -> Outcome:
    set_current(context)
    if inspect.iscoroutinefunction(definition.function):
        outcome = asyncio.run(await_body(definition, arguments))
    else:
        outcome = call_body(definition, arguments)
    return check_steps(context, outcome, definition, arguments)


def _describe(outcome: Outcome) -> dict[str, Any]:
    match outcome:
        case Returned(result):
            return {"outcome": "returned", "result": result}
        case Raised(error, retryable, named, after, cause):
            rest = [retryable, named, after, cause]
            return {"outcome": "raised", "error": list(error), "rest": rest}
        case TimedOut(error):
            rest = [True, False, None, "timed_out"]
            return {"outcome": "raised", "error": list(error), "rest": rest}
        case Outage(error):
            return {"outcome": "outage", "error": list(error)}
        case Snoozed(after):
            return {"outcome": "snoozed", "after": after}
        case Cancelled(cause, reason):
            return {"outcome": "cancelled", "cause": cause, "reason": reason}
        case _:
            message = f"a body cannot end as {outcome!r}"
            raise AssertionError(message)


def _definitions(home: str) -> dict[str, Definition]:
    """Import the module and return, by name, the tasks found in it, and those of applications."""
    name, _, file = home.partition("=")
    if file:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            message = f"cannot import {file}"
            raise ImportError(message)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    found: dict[str, Definition] = {}
    for value in list(vars(module).values()):
        # A task may be a plain function that only its application knows.
        registry = getattr(value, "registry", None)
        if isinstance(registry, Registry):
            found |= {known.name: known for known in registry.definitions()}
    for value in list(vars(module).values()):
        definition = getattr(value, "definition", None)
        if isinstance(definition, Definition):
            found[definition.name] = definition
    return found
