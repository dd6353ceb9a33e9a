"""Lets a fleet of RQ workers run tasks of ours."""

from collections.abc import Sequence
from weakref import WeakValueDictionary

import rq

from duly.app import Duly
from duly.carrier import CarrierMessage, check_resend_policy
from duly.errors import AppNotFound, TaskNotRegistered
from duly.integrations.carrier_worker import CarrierWorker
from duly.limits import RELAY_STALE_SECONDS
from duly.settings import load_settings
from duly.worker.app_loader import load, parse_reference

_FUNCTION = "duly.integrations.rq.carry"
_NO_TIMEOUT = -1
_FAILURE_SECONDS = 3600
_applications: "WeakValueDictionary[str, Duly]" = WeakValueDictionary()
"""The applications of this process that have a carrier of RQ, by the names in their messages."""


class RQCarrier:
    """Brings runs to RQ's workers, over their Redis.

    A worker of RQ forks a process per message, which claims the run by id, runs one attempt and
    settles it: the run, its retries, its schedule and its dead letter are ours, the processes are
    RQ's. Between messages nothing of ours runs there, so somebody else has to hand runs over:
    one `duly worker`, or `with app.worker()` in a program.
    """

    def __init__(
        self,
        queue: rq.Queue,
        *,
        app: str,
        stale: float = RELAY_STALE_SECONDS,
        most: int | None = None,
        **settings: float,
    ) -> None:
        """Send messages to this queue, for workers that know the application by this name.

        `app` is `module:attribute`, as for `duly worker`. Workers load it if DULY_APP names it, or
        have it already; they load nothing because a message says so. A run that nobody has claimed
        is handed over again after `stale` seconds, then after twice that and so on, `most` times.
        `settings` are those of a worker: lease, beat, grace.
        """
        self.pace = check_resend_policy(stale, most)
        self._queue = queue
        self._reference = _name(app)
        self._carrying = CarrierWorker(**settings)

    def attach(self, app: Duly) -> None:
        """Get to know the application whose tasks name this carrier."""
        self._carrying.attach(app)
        _applications[self._reference] = app

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages over RQ's Redis."""
        # A message is a hint, so what becomes of it is of no use for long. How long a body may
        # take is the task's to say; RQ would end it after three minutes.
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
        """Run one attempt and say good-bye: RQ ends the process next, without a word."""
        app = self._carrying.app
        # A SimpleWorker runs jobs in the program's own process, which goes on with its store.
        is_shared = app.is_open
        try:
            return self._carrying.run(run_id, claim_number, task)
        finally:
            self._carrying.stop()
            if not is_shared:
                # Which sends the last hint, so that a retry is handed over when it is due.
                app.close()


def carry(reference: str, run_id: str, claim_number: int, task: str) -> None:
    """Run one attempt; this is what the messages ask RQ's workers for.

    What goes wrong in here is seen among RQ's failed jobs and does no harm: the run is handed over
    again.
    """
    carrier = _application(reference).registry.carriers().get(task)
    if not isinstance(carrier, RQCarrier):
        raise TaskNotRegistered(task)
    carrier.run(run_id, claim_number, task)


def _application(reference: str) -> Duly:
    """Return the application that a message names, if this process has it or is told to load it.

    The name is compared and never imported: whoever writes a message would choose what runs here.
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
