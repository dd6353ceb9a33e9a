"""Steps that must not start twice: those that a run was interrupted in, and their effect keys."""

from collections.abc import Iterable

from duly.core.record import StepRecord
from duly.core.states import State


def unresolved_steps(steps: Iterable[StepRecord]) -> dict[str, StepRecord]:
    """Return the steps that have started and not ended, by name.

    If the run has ended, it is unknown whether these steps had their effect.
    """
    return {step.name: step for step in steps if step.kind == "step" and not step.done}


def outermost_steps(begun: dict[str, StepRecord]) -> list[str]:
    """Return the names of the steps that are not inside another one of these steps."""
    return [name for name, step in begun.items() if step.awaited not in begun]


def steps_to_resolve(state: str, steps: Iterable[StepRecord]) -> tuple[str, ...]:
    """Return the steps that a person must resolve before a run that has ended can continue.

    A run that succeeded needs none of them.
    """
    return () if state == State.SUCCEEDED else tuple(outermost_steps(unresolved_steps(steps)))


def effect_key(run_id: str, steps: Iterable[StepRecord], name: str) -> str:
    """Return the idempotency key that a run passes to an outside API under a name."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few programs need

    epoch = next((step.result for step in steps if step.kind == "epoch"), 0)
    return hashlib.sha256(f"{run_id}/{epoch}/{name}".encode()).hexdigest()[:32]
