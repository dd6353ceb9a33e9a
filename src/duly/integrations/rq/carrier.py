"""Lets a fleet of RQ workers run duly tasks."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

import rq

from duly import Duly
from duly.errors import AppNotFound, TaskNotRegistered
from duly.extend import CarrierMessage, CarrierWorker, ResendPolicy
from duly.settings import load_settings
from duly.worker.app_loader import load, parse_reference

_FUNCTION = "duly.integrations.rq.carry"
_NO_TIMEOUT = -1
DEFAULT_RESEND_POLICY = ResendPolicy()
_FAILURE_SECONDS = 3600
_applications: "WeakValueDictionary[str, Duly]" = WeakValueDictionary()
"""The applications of this process that have an RQ carrier, by the names in their messages."""


class RQCarrier:
    """Sends runs to RQ's workers over their Redis.

    An RQ worker forks a process per message, which claims the run by id, runs one attempt and
    settles it. duly manages the run, its retries, its schedule and its dead letter. RQ provides the
    processes. Between messages no duly code runs there, so another process must send the runs: one
    `duly worker`, or a program with `with app.worker()`.
    """

    def __init__(
        self,
        queue: rq.Queue,
        *,
        app: str,
        first_resend_after: float = DEFAULT_RESEND_POLICY.first_resend_after,
        max_sends: int | None = None,
        **settings: float,
    ) -> None:
        """Send messages to this queue, for workers that know the application by this name.

        `app` is `module:attribute`, as for `duly worker`. Workers load it only if DULY_APP names it
        or it is loaded already, never because of a message. A run that no worker has claimed is
        sent again after `first_resend_after` seconds, then after twice that time and so on. After
        `max_sends` messages it is a dead letter. `settings` are worker settings: lease, beat and
        grace.
        """
        self.resend_policy = ResendPolicy(first_resend_after, max_sends)
        self._queue = queue
        self._reference = _name(app)
        self._carrying = CarrierWorker(**settings)

    def attach(self, app: Duly) -> None:
        """Remember the application whose tasks use this carrier."""
        self._carrying.attach(app)
        _applications[self._reference] = app

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages over RQ's Redis."""
        # A message is only a hint, so its result and failure are soon useless. The duly task has
        # its own time limit. RQ's default would stop the task after three minutes.
        self._queue.enqueue_many(
            [
                self._queue.prepare_data(
                    _FUNCTION,
                    args=(self._reference, message.run_id, message.claim_number, message.task),
                    timeout=_NO_TIMEOUT,
                    result_ttl=0,
                    failure_ttl=_FAILURE_SECONDS,
                )
                for message in messages
            ]
        )

    def run(self, run_id: str, claim_number: int, task: str) -> bool:
        """Run one attempt and stop the worker, since RQ ends the process right after the job."""
        app = self._carrying.app
        # A SimpleWorker runs jobs in the program's own process, which continues to use the store.
        is_shared = app.is_open
        try:
            return self._carrying.run(run_id, claim_number, task)
        finally:
            self._carrying.stop()
            if not is_shared:
                # This sends the last hint, so that a retry is sent when it is due.
                app.close()


def carry(reference: str, run_id: str, claim_number: int, task: str) -> None:
    """Run one attempt. The messages to RQ's workers call this function.

    An error here appears among RQ's failed jobs and is harmless: the run is sent again.
    """
    carrier = _application(reference).registry.carriers().get(task)
    if not isinstance(carrier, RQCarrier):
        raise TaskNotRegistered(task)
    carrier.run(run_id, claim_number, task)


def _application(reference: str) -> Duly:
    """Return the application that a message names, if it is loaded here or DULY_APP names it.

    The name is only compared, never imported. Otherwise the author of a message could choose the
    code that runs here.
    """
    name = _name(reference)
    configured = load_settings().app
    if name not in _applications and configured is not None and _name(configured) == name:
        load(configured)
    found = _applications.get(name)
    if found is None:
        raise AppNotFound(
            f"this RQ worker does not have the application {name} that a message names; start the "
            f"worker with DULY_APP={name}, or import the module with `rq worker --config`"
        )
    return found


def _name(reference: str) -> str:
    module, attribute = parse_reference(reference)
    return f"{module}:{attribute}"
