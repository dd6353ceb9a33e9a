"""Lets a fleet of Celery workers run tasks of ours."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

import celery
from celery import signals

from duly.app import Duly
from duly.carrier import CarrierMessage, check_resend_policy
from duly.errors import OUTAGES, BadOption
from duly.integrations.carrier_worker import CarrierWorker
from duly.limits import DELAY_SECONDS, RELAY_STALE_SECONDS

_PREFORK = "celery.concurrency.prefork"
_names: "WeakKeyDictionary[celery.Celery, set[str]]" = WeakKeyDictionary()
"""Which tasks carry messages, by Celery's application: it keeps the first of a name, unsaid."""


class CeleryCarrier:
    """Brings runs to Celery's workers, over whatever broker that has.

    A worker of Celery that imports the module with the tasks shows that it lives while it runs,
    hands runs over, claims by id what it is brought, and settles it: the run, its retries, its
    schedule and its dead letter are ours, the processes are Celery's.
    """

    def __init__(
        self,
        celery_app: celery.Celery,
        *,
        queue: str | None = None,
        name: str = "duly.carry",
        stale: float = RELAY_STALE_SECONDS,
        most: int | None = None,
        **settings: float,
    ) -> None:
        """Send messages to this queue, or to the one that Celery chooses.

        `name` is that of the task that carries them there; a second carrier on one Celery
        application needs another one. A run that nobody has claimed is handed over again after
        `stale` seconds, then after twice that and so on, `most` times in all. `settings` are those
        of a worker: lease, beat, grace.
        """
        self.pace = check_resend_policy(stale, most)
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
        """Get to know the application whose tasks name this carrier."""
        if not self._carrying.attach(app):
            return

        def carry(run_id: str, claim_number: int, task: str) -> None:
            # What cannot be run now is handed over again.
            with suppress(*OUTAGES):
                self._carrying.run(run_id, claim_number, task)

        # A message is a hint, so it is acknowledged at once and its result is nobody's business.
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
        # How long a body may take is the task's to say. No limit at all is none that Celery knows:
        # it would take the application's own.
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
        if celery.current_app._get_current_object() is self._celery:  # noqa: SLF001 - its only way
            # The processes of a pool, and the one that is a worker without a pool.
            self._carrying.start(concurrency=1)

    def _on_worker_ready(self, sender: Any, **_: object) -> None:  # noqa: ANN401 - Celery's own
        # A prefork pool runs bodies in processes that are told apart from this one.
        is_prefork = type(sender.pool).__module__ == _PREFORK
        if sender.app is self._celery and not is_prefork:
            self._carrying.start(concurrency=sender.pool.limit)

    def _on_end(self, **_: object) -> None:
        self._carrying.stop()
