"""Steps that must not begin twice: which a run was interrupted in, and what they were known by."""

from collections.abc import Iterable

from duly.core.record import StepRecord
from duly.core.states import State


def unresolved_steps(steps: Iterable[StepRecord]) -> dict[str, StepRecord]:
    """Return the steps that have begun and not ended, by name.

    If the run has ended, nobody knows what became of them.
    """
    return {step.name: step for step in steps if step.kind == "step" and not step.done}


def outermost_steps(begun: dict[str, StepRecord]) -> list[str]:
    """Return the names of those that lie in none of the others."""
    return [name for name, step in begun.items() if step.awaited not in begun]


def steps_to_resolve(state: str, steps: Iterable[StepRecord]) -> tuple[str, ...]:
    """Return the steps that a person has to resolve before a run that has ended can go on.

    A run that succeeded did without them.
    """
    return () if state == State.SUCCEEDED else tuple(outermost_steps(unresolved_steps(steps)))


def effect_key(run_id: str, steps: Iterable[StepRecord], name: str) -> str:
    """Return the key that a run gives to an outside API under a name."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which few need

    epoch = next((step.result for step in steps if step.kind == "epoch"), 0)
    return hashlib.sha256(f"{run_id}/{epoch}/{name}".encode()).hexdigest()[:32]
