"""The states of a run over time. Pure functions."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duly.core.display import display_action
from duly.core.record import AttemptRecord, AuditEntry, RunRecord
from duly.core.states import FINAL
from duly.dashboard.waterfall import attempt_labels

_ENDS = {"returned": "succeeded", "cancelled": "cancelled", "vanished": "interrupted"}
"""How a generation ended, by the outcome of its last attempt. Otherwise it failed."""


_QUEUEING = ("redrive", "edit and redrive", "reschedule")
"""The first words of the operator actions after which a run waits anew."""


class StateChange(NamedTuple):
    """A state that a run reached, with its time and reason."""

    state: str
    at: int
    note: str


def timeline(
    run: RunRecord, attempts: Sequence[AttemptRecord], acts: Sequence[AuditEntry]
) -> list[StateChange]:
    """Return the states of a run, oldest first."""
    found = [StateChange("queued", run.created_at, "made"), *_of_attempts(run, attempts)]
    found += [
        StateChange("queued", act.at, f"{display_action(act.act)} by {act.actor}")
        for act in acts
        if act.act.startswith(_QUEUEING)
    ]
    if run.state == "running":
        if run.claimed_at is not None:
            found.append(StateChange("running", run.claimed_at, attempt_labels(run, attempts)[-1]))
        found += [
            StateChange("running", act.at, f"{act.actor} requested cancellation")
            for act in acts
            if act.act == "cancel"
        ]
    if run.finished_at is not None:
        found.append(StateChange(run.state, run.finished_at, (run.cause or "").replace("_", " ")))
    return sorted(found, key=lambda moment: moment.at)


def _of_attempts(run: RunRecord, attempts: Sequence[AttemptRecord]) -> Iterator[StateChange]:
    labels = attempt_labels(run, attempts)
    for place, attempt in enumerate(attempts):
        if attempt.started_at is not None:
            yield StateChange("running", attempt.started_at, labels[place])
        is_last = place == len(attempts) - 1
        if is_last and run.state in FINAL:
            return
        following = run.generation if is_last else attempts[place + 1].generation
        note = attempt.outcome.replace("_", " ")
        if following == attempt.generation:
            yield StateChange("queued", attempt.finished_at, note)
        else:
            yield StateChange(_ENDS.get(attempt.outcome, "failed"), attempt.finished_at, note)
