"""Counts and timelines of a checked history, for human readers."""

from collections import Counter, defaultdict
from typing import Any

from duly.core.states import State
from duly_prove.checker import EXTRA, MISSED, CheckResult
from duly_prove.history import BodySignal, Effect, History, Transition


def count_all(history: History, verdict: CheckResult) -> dict[str, int]:
    """Return the counts of runs by final state, of effects, and of violations."""
    states: dict[str, int] = dict.fromkeys([*map(str, State)], 0)
    for run in history.runs:
        states[run.state] = states.get(run.state, 0) + 1
    broken: dict[str, set[str]] = defaultdict(set)
    for violation in verdict.violations:
        broken[violation.invariant].add(violation.run_id)
    effects = Counter(
        (effect.run_id, effect.generation)
        for effect in history.effects
        if effect.task not in history.transactional | history.hold_tasks
    )
    return {
        "enqueued": sum(request.kind == "accepted" for request in history.requests),
        "indeterminate": len({r.run_id for r in history.requests})
        - sum(request.kind == "accepted" for request in history.requests),
        **states,
        "lost": len(broken["I1 no loss"] | broken["I14 conservation"]),
        "doubled": len(broken["I9 exactly once"] | broken["I11 at most once"]),
        "stale_writes": len(broken["I6 fenced"]),
        "attempts_lost": sum(attempt.outcome == "lost" for attempt in history.attempts),
        "bodies": sum(sign.kind == "begin" for sign in history.body_signals),
        "effects": len(history.effects),
        "rerun_effects_again": sum(times - 1 for times in effects.values()),
        "transitions": len(history.transitions or ()),
        "instants_due": len(history.due),
        "firings": len(history.firings),
        "instants_missed": sum(found.invariant == MISSED for found in verdict.violations),
        "extra_firings": sum(found.invariant == EXTRA for found in verdict.violations),
    }


def history_of_run(history: History, run_id: str) -> list[dict[str, Any]]:
    """Return everything known about one run, in chronological order."""
    told: list[tuple[int, dict[str, Any]]] = [
        (event.at, {"by": "store", **_describe(event, "run_id", "at")})
        for event in history.transitions or ()
        if event.run_id == run_id
    ]
    told += [
        (sign.wall, {"by": "body", **_describe(sign, "run_id", "wall")})
        for sign in history.body_signals
        if sign.run_id == run_id
    ]
    told.sort(key=lambda entry: entry[0])
    begin = told[0][0] if told else 0
    return [{"ms": round((at - begin) / 1000, 1)} | entry for at, entry in told] + [
        {"by": "ledger", **_describe(effect, "run_id")}
        for effect in history.effects
        if effect.run_id == run_id
    ]


def _describe(record: Transition | BodySignal | Effect, *left_out: str) -> dict[str, Any]:
    fields = record._asdict()
    return {key: fields[key] for key in fields if key not in left_out and fields[key] is not None}
