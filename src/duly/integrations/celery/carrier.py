"""Lets a fleet of Celery workers run duly tasks."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import celery
from celery import signals

from duly import Duly
from duly.errors import OUTAGES, BadOption
from duly.extend import CarrierMessage, CarrierWorker, ResendPolicy
from duly.limits import DELAY_SECONDS

_PREFORK = "celery.concurrency.prefork"
DEFAULT_RESEND_POLICY = ResendPolicy()
_names: "WeakKeyDictionary[celery.Celery, set[str]]" = WeakKeyDictionary()
"""The carrier task names used so far, per Celery application.

If two tasks have the same name, Celery silently keeps the first.
"""


class CeleryCarrier:
    """Sends runs to Celery's workers over the broker that Celery uses.

    A Celery worker that imports the module with the tasks acts as a duly worker: it renews a lease,
    sends queued runs to the broker, claims delivered runs by id and settles them. duly manages the
    run, its retries, its schedule and its dead letter. Celery provides the processes.
    """

    def __init__(
        self,
        celery_app: celery.Celery,
        *,
        queue: str | None = None,
        name: str = "duly.carry",
        first_resend_after: float = DEFAULT_RESEND_POLICY.first_resend_after,
        max_sends: int | None = None,
        **settings: float,
    ) -> None:
        """Send messages to this queue, or to the queue that Celery chooses.

        `name` is the name of the Celery task that carries the messages. A second carrier on one
        Celery application needs a different name. A run that no worker has claimed is sent again
        after `first_resend_after` seconds, then after twice that time and so on. After `max_sends`
        messages it is a dead letter. `settings` are worker settings: lease, beat and grace.
        """
        self.resend_policy = ResendPolicy(first_resend_after, max_sends)
        taken = _names.setdefault(celery_app, set())
        if name in taken:
            raise BadOption(
                f"another carrier of this Celery application has the task {name!r}; give this "
                f"carrier its own name: CeleryCarrier(…, name={name + '-2'!r})"
            )
        taken.add(name)
        self._name = name
        self._celery = celery_app
        self._queue = queue
        self._carrying = CarrierWorker(**settings)
        self._task: Any = None

    def attach(self, app: Duly) -> None:
        """Remember the application whose tasks use this carrier, and register the Celery task."""
        if not self._carrying.attach(app):
            return

        def carry(run_id: str, claim_number: int, task: str) -> None:
            # A run that cannot run now is sent again later.
            with suppress(*OUTAGES):
                self._carrying.run(run_id, claim_number, task)

        # A message is only a hint, so it is acknowledged at once and its result is ignored.
        self._task = self._celery.task(
            carry,
            name=self._name,
            base=celery.Task,
            ignore_result=True,
            acks_late=False,
            shared=False,
        )
        signals.worker_process_init.connect(self._on_process_start, weak=False)
        signals.worker_ready.connect(self._on_worker_ready, weak=False)
        signals.worker_process_shutdown.connect(self._on_end, weak=False)
        signals.worker_shutdown.connect(self._on_end, weak=False)

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Send messages over Celery's broker."""
        # The duly task has its own time limit. Celery cannot express "no limit" here: it would
        # apply the limit of the Celery application.
        limits = {"time_limit": DELAY_SECONDS, "soft_time_limit": DELAY_SECONDS}
        with self._celery.producer_or_acquire() as producer:
            for message in messages:
                self._task.apply_async(
                    (message.run_id, message.claim_number, message.task),
                    producer=producer,
                    queue=self._queue,
                    retry=False,
                    **limits,
                )

    def _on_process_start(self, **_: object) -> None:
        if celery.current_app._get_current_object() is self._celery:  # noqa: SLF001 - no public way
            # This process belongs to a pool, or it is a worker without a pool.
            self._carrying.start(concurrency=1)

    def _on_worker_ready(self, sender: Any, **_: object) -> None:  # noqa: ANN401 - Celery's own
        # A prefork pool runs tasks in child processes, which start their own worker.
        is_prefork = type(sender.pool).__module__ == _PREFORK
        if sender.app is self._celery and not is_prefork:
            self._carrying.start(concurrency=sender.pool.limit)

    def _on_end(self, **_: object) -> None:
        self._carrying.stop()
