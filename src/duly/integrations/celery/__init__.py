"""Celery tasks that run once per payload, survive kill -9 and leave dead letters when they fail."""

from duly.integrations.extras import missing

try:
    from duly.integrations.celery.app import Celery, guard_of, use_guard
    from duly.integrations.celery.carrier import CeleryCarrier
    from duly.integrations.celery.coroutines import LoopIsRunning
    from duly.integrations.celery.dead_letters import DeadLettered, WorkerLostTooOften, send_to_dlq
    from duly.integrations.celery.ledger import LedgerNotConfigured
    from duly.integrations.celery.reservation import AlreadyQueued
    from duly.integrations.celery.task import IdempotentTask
except ModuleNotFoundError as error:
    raise missing(error, "celery") from error

__all__ = [
    "AlreadyQueued",
    "Celery",
    "CeleryCarrier",
    "DeadLettered",
    "IdempotentTask",
    "LedgerNotConfigured",
    "LoopIsRunning",
    "WorkerLostTooOften",
    "guard_of",
    "send_to_dlq",
    "use_guard",
]
