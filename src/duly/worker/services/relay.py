"""Hands runs to the engines that carry them, after their commit and again when they are stale."""

from collections.abc import Mapping

from duly.carrier import Carrier, CarrierMessage, CarrierSendFailed, ResendPolicy
from duly.clock import MICROSECONDS
from duly.events import EngineFailed, EventBus, RunsUndelivered
from duly.limits import RELAY_BATCH, RELAY_LONGEST_SECONDS
from duly.registry import Registry
from duly.store.ops.carriers import HandedOver, HandOver, PostponeHandOver
from duly.store.protocol import Store

_FAILED_SECONDS = 5
_WHEN_CALLED = 3600.0


class Relay:
    """A service: each tick hands over one batch. Every worker does; nobody is elected.

    A message says only that an attempt may begin. It may be lost with its sender or its broker,
    and is then sent again; it may arrive twice, and the second one claims nothing.
    """

    name = "relay"

    def __init__(self, store: Store, registry: Registry, bus: EventBus) -> None:
        self._store = store
        self._registry = registry
        self._bus = bus

    def tick(self) -> float:
        """Hand over one batch; the promoter says when there is something."""
        carriers = self._registry.carriers()
        tasks_by_policy: dict[ResendPolicy, list[str]] = {}
        for task, carrier in carriers.items():
            tasks_by_policy.setdefault(carrier.resend_policy, []).append(task)
        is_full = False
        for policy, tasks in tasks_by_policy.items():
            # Sent before the next op: a message that is not sent waits until its run is stale.
            answer = self._store.do(_hand_over(policy, tasks))
            self._deliver(carriers, answer)
            is_full |= len(answer.messages) + len(answer.undelivered) >= RELAY_BATCH
        return 0.0 if is_full else _WHEN_CALLED

    def _deliver(self, carriers: Mapping[str, Carrier], handed: HandedOver) -> None:
        if handed.undelivered:
            self._bus.emit(RunsUndelivered(tuple(handed.undelivered)))
        parts: dict[int, tuple[Carrier, list[CarrierMessage]]] = {}
        for message in handed.messages:
            carrier = carriers[message.task]
            parts.setdefault(id(carrier), (carrier, []))[1].append(message)
        for carrier, own in parts.values():
            self._send(carrier, own)

    def _send(self, carrier: Carrier, messages: list[CarrierMessage]) -> None:
        try:
            carrier.send(messages)
        except CarrierSendFailed as error:
            self._send_again(error.run_ids, str(error))
        except Exception as error:  # noqa: BLE001 - whatever the client of a broker raises
            # Some may have arrived; sent again, those claim nothing.
            ids = tuple(message.run_id for message in messages)
            self._send_again(ids, f"{type(error).__name__}: {error}")

    def _send_again(self, run_ids: tuple[str, ...], why: str) -> None:
        self._bus.emit(EngineFailed("relay", why))
        self._store.do(PostponeHandOver(run_ids, _FAILED_SECONDS * MICROSECONDS))


def _hand_over(policy: ResendPolicy, tasks: list[str]) -> HandOver:
    return HandOver(
        tuple(tasks),
        stale=round(policy.first_resend_after * MICROSECONDS),
        longest=round(max(policy.first_resend_after, RELAY_LONGEST_SECONDS) * MICROSECONDS),
        limit=RELAY_BATCH,
        most=policy.max_sends,
    )
