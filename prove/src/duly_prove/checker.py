"""Checks whether a history kept the invariants. Pure: no clock, no I/O.

Each run has its own small linear history, so one pass over all events, grouped by run, is enough.
The invariants are numbered as in the reliability notes.
"""

import json
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from duly.core.states import FINAL, State
from duly.limits import CRASH_LIMIT
from duly_prove.history import (
    BodySignal,
    Effect,
    FiringAtEnd,
    Freeze,
    History,
    RunAtEnd,
    Transition,
)

LOSSES = CRASH_LIMIT + 5
"""The most attempts that one run may lose: one uncharged before it gets its own child process, the
crash limit there, and a few that had ended without a record, which are charged to no run."""
MISSED, EXTRA = "I15 missed instant", "I15 extra firing"
LIVE_OVERLAP_SECONDS = 0.005
"""How long a body may outlive its claim: the precision of comparing two processes' times."""


class Violation(NamedTuple):
    """A broken invariant and its run."""

    invariant: str
    run_id: str
    what: str


@dataclass(slots=True)
class CheckResult:
    """The violations, and the measurements of the checker."""

    violations: list[Violation] = field(default_factory=list)
    largest_overlap: float = 0.0
    largest_embedded_overlap: float = 0.0
    """The same for bodies in processes that nothing ends when their lease expires."""
    most_losses: int = 0

    @property
    def holds(self) -> bool:
        """Whether no invariant was broken."""
        return not self.violations


def check(history: History) -> CheckResult:
    """Check all invariants. Violations are in the order of the checks here."""
    verdict = CheckResult()
    found = verdict.violations
    found += _no_loss_and_no_invention(history)
    found += _check_one_place(history)
    if history.transitions is not None:
        found += _transitions(history.transitions)
        found += _claims_counted(history)
    found += _effects(history)
    found += _schedules(history)
    found += _bounded(history, verdict)
    found += _bodies(history, verdict)
    found += _check_final_state(history)
    return verdict


# -- the invariants ------------------------------------------------------------------------------


def _no_loss_and_no_invention(history: History) -> Iterator[Violation]:
    known = {run.run_id for run in history.runs}
    invoked = {request.run_id for request in history.requests}
    invoked |= {firing.run_id for firing in history.firings if firing.run_id is not None}
    accepted = [r for r in history.requests if r.kind == "accepted"]
    for request in accepted:
        if request.run_id not in known:
            yield Violation("I1 no loss", request.run_id, "it was accepted and does not exist")
    for run_id in known - invoked:
        yield Violation("I2 no invention", run_id, "it was never enqueued")


def _check_one_place(history: History) -> Iterator[Violation]:
    for run in history.runs:
        if run.places != 1:
            what = f"it is in {run.places} tables"
            yield Violation("I14 conservation", run.run_id, what)
    for run_id in history.missing:
        yield Violation("I14 conservation", run_id, "a snapshot did not find it in any table")
    for run_id in history.went_back:
        yield Violation("I19 honest reads", run_id, "it was final and later was not")


def _transitions(transitions: Sequence[Transition]) -> Iterator[Violation]:
    standings: dict[str, _RunProgress] = defaultdict(_RunProgress)
    for event in transitions:
        yield from standings[event.run_id].take(event)


class _RunProgress:
    """The progress of one run as far as the events show it."""

    def __init__(self) -> None:
        self._claims = 0
        self._generation = 1
        self._running = False
        self._worker: str | None = None
        self._final: str | None = None

    def take(self, event: Transition) -> Iterator[Violation]:
        match event.kind:
            case "claim":
                yield from self._claim(event)
            case "requeue" | "end":
                yield from self._leave(event)
            case "revive":
                if self._final is None:
                    yield _violation_at(event, "I7 absorbing", "it was revived before it had ended")
                self._final = None
                self._generation += 1
            case "rewrite":
                yield _violation_at(
                    event, "I7 absorbing", f"its end was rewritten as {event.state}"
                )
            case _:
                if event.kind == "wait" and self._running:
                    # To requeue for later, PostgreSQL moves the row, and SQLite writes two steps.
                    yield from self._leave(event._replace(worker_id=self._worker))
                # An operator action writes the next generation before it removes the last one.
                is_next = event.generation == self._generation + 1
                if self._final is not None and not is_next:
                    yield _violation_at(
                        event, "I7 absorbing", f"it was queued after it {self._final}"
                    )

    def _claim(self, event: Transition) -> Iterator[Violation]:
        if event.claim_number != self._claims + 1:
            what = f"claim {event.claim_number} followed claim {self._claims}"
            yield _violation_at(event, "I4 claim numbers", what)
        if self._final is not None:
            yield _violation_at(event, "I7 absorbing", f"it was claimed after it {self._final}")
        if self._running:
            what = f"it was claimed while {self._worker} held it"
            yield _violation_at(event, "I5 one holder", what)
        self._claims = event.claim_number
        self._running, self._worker = True, event.worker_id

    def _leave(self, event: Transition) -> Iterator[Violation]:
        if self._final is not None:
            again = "I8 single success" if event.state == State.SUCCEEDED else "I7 absorbing"
            yield _violation_at(event, again, f"it ended again after it {self._final}")
        elif event.kind == "end" and event.outcome is None:
            # It was cancelled while no worker ran it.
            if self._running:
                yield _violation_at(event, "I6 fenced", "it ended without an attempt while it ran")
        elif not self._running:
            yield _violation_at(
                event, "I6 fenced", f"it was settled although no worker ran it ({event.kind})"
            )
        elif event.claim_number != self._claims:
            what = f"claim {event.claim_number} was settled while claim {self._claims} held it"
            yield _violation_at(event, "I6 fenced", what)
        elif event.worker_id != self._worker:
            yield _violation_at(event, "I6 fenced", f"it was settled for {event.worker_id}")
        if event.generation != self._generation:
            yield _violation_at(event, "I7 absorbing", f"it ended in generation {event.generation}")
        self._running = False
        self._final = event.state if event.kind == "end" else None


def _claims_counted(history: History) -> Iterator[Violation]:
    claims: dict[str, int] = defaultdict(int)
    for event in history.transitions or ():
        claims[event.run_id] += event.kind == "claim"
    for run in history.runs:
        if run.claim_number != claims[run.run_id]:
            what = f"it has claim {run.claim_number} after {claims[run.run_id]} claims"
            yield Violation("I4 claim numbers", run.run_id, what)


def _effects(history: History) -> Iterator[Violation]:
    effects: dict[str, list[Effect]] = defaultdict(list)
    for effect in history.effects:
        effects[effect.run_id].append(effect)
    begins: dict[tuple[str, int], int] = defaultdict(int)
    for sign in history.body_signals:
        begins[sign.run_id, sign.generation] += sign.kind == "begin"
    for run in history.runs:
        mine = effects.pop(run.run_id, [])
        yield from _result(run)
        if run.task in history.transactional:
            yield from _exactly_once(run, mine)
        elif run.task in history.hold_tasks:
            yield from _at_most_once(run, mine, begins)
        elif run.state == State.SUCCEEDED and not mine:
            yield Violation("I1 no loss", run.run_id, "it succeeded and had no effect")
    for run_id in effects:
        yield Violation("I2 no invention", run_id, "an unknown run had an effect")


def _result(run: RunAtEnd) -> Iterator[Violation]:
    if run.state != State.SUCCEEDED:
        return
    fence = None if run.result is None else json.loads(run.result)
    if fence != run.claim_number:
        what = f"its result is that of claim {fence}, but claim {run.claim_number} held it"
        yield Violation("I6 fenced", run.run_id, what)


def _exactly_once(run: RunAtEnd, effects: list[Effect]) -> Iterator[Violation]:
    wanted = 1 if run.state == State.SUCCEEDED else 0
    if len(effects) != wanted:
        what = f"it is {run.state} and wrote {len(effects)} rows"
        yield Violation("I9 exactly once", run.run_id, what)
    elif wanted and effects[0].claim_number != run.claim_number:
        what = f"claim {effects[0].claim_number} wrote its row, claim {run.claim_number} ended it"
        yield Violation("I6 fenced", run.run_id, what)


def _at_most_once(
    run: RunAtEnd, effects: list[Effect], begins: Mapping[tuple[str, int], int]
) -> Iterator[Violation]:
    for generation in range(1, run.generation + 1):
        done = sum(effect.generation == generation for effect in effects)
        begun = begins.get((run.run_id, generation), 0)
        if done > 1 or begun > 1:
            what = f"a hold task began {begun} times and had its effect {done} times"
            yield Violation("I11 at most once", run.run_id, what)
        last = generation == run.generation
        if last and run.state == State.SUCCEEDED and done != 1:
            what = f"it succeeded and had its effect {done} times"
            yield Violation("I11 at most once", run.run_id, what)
        if last and begun and run.state not in {State.SUCCEEDED, State.INTERRUPTED}:
            what = f"a hold task had begun and is {run.state}"
            yield Violation("I11 at most once", run.run_id, what)


def _schedules(history: History) -> Iterator[Violation]:
    """Check that each due instant has one firing, and each firing with a run has one run."""
    due: dict[tuple[str, int], list[int]] = defaultdict(list)
    for each in history.due:
        due[each.schedule, each.version].append(each.instant)
    firings: dict[tuple[str, int], list[FiringAtEnd]] = defaultdict(list)
    for firing in history.firings:
        firings[firing.schedule, firing.version].append(firing)
    for place in sorted(due.keys() | firings.keys()):
        yield from _match(place[0], sorted(due[place]), sorted(firings[place], key=_instant))
    yield from _runs_of_firings(history)
    for firing in history.firings:
        if firing.outcome == "skipped" and firing.schedule not in history.may_skip:
            what = f"{firing.schedule} at {firing.instant} was skipped: {firing.reason}"
            yield Violation(MISSED, "", what)


def _match(schedule: str, due: list[int], firings: list[FiringAtEnd]) -> Iterator[Violation]:
    """Match both in the order of time. A firing uses up the due instants that it stands for."""
    place = 0
    for firing in firings:
        begin = bisect_left(due, firing.instant, lo=place)
        for instant in due[place:begin]:
            yield Violation(MISSED, "", f"{schedule} did not fire at {instant}")
        place = bisect_right(due, firing.last_instant, lo=begin)
        if place - begin != firing.instants:
            what = (
                f"{schedule} fired for {firing.instants} instants from {firing.instant} on, but "
                f"{place - begin} due ones had not fired"
            )
            yield Violation(EXTRA, firing.run_id or "", what)
    for instant in due[place:]:
        yield Violation(MISSED, "", f"{schedule} did not fire at {instant}")


def _instant(firing: FiringAtEnd) -> int:
    return firing.instant


def _runs_of_firings(history: History) -> Iterator[Violation]:
    made = {run.run_id: run.schedule for run in history.scheduled_runs}
    named = Counter(firing.run_id for firing in history.firings if firing.run_id is not None)
    for firing in history.firings:
        where = f"{firing.schedule} at {firing.instant}"
        if firing.run_id is None:
            if firing.outcome != "skipped":
                yield Violation(MISSED, "", f"{where} is {firing.outcome} and created no run")
        elif made.get(firing.run_id) != firing.schedule:
            yield Violation(MISSED, firing.run_id, f"{where} names a run that does not exist")
        elif named[firing.run_id] > 1:
            yield Violation(MISSED, firing.run_id, f"{where} shares its run with another instant")
    for run_id, schedule in made.items():
        if run_id not in named:
            yield Violation(EXTRA, run_id, f"a run of {schedule} without a firing")


def _bounded(history: History, verdict: CheckResult) -> Iterator[Violation]:
    losses: dict[tuple[str, int], int] = defaultdict(int)
    for attempt in history.attempts:
        losses[attempt.run_id, attempt.generation] += attempt.outcome == "lost"
    verdict.most_losses = max(losses.values(), default=0)
    for (run_id, _generation), count in losses.items():
        if count > LOSSES:
            yield Violation("I12 bounded", run_id, f"{count} of its attempts were lost")
        if count and not history.crash_charges_allowed:
            yield Violation("I12 bounded", run_id, "an attempt was lost without a kill")
    for run in history.runs:
        if run.state == State.FAILED and run.cause != "crashed":
            yield Violation(
                "I12 bounded", run.run_id, f"no task raises, but it failed: {run.cause}"
            )
        if run.crashes > CRASH_LIMIT:
            yield Violation("I12 bounded", run.run_id, f"it was charged {run.crashes} crashes")
        if run.crashes and not history.crash_charges_allowed:
            yield Violation("I12 bounded", run.run_id, "it was charged although nothing was killed")


def _bodies(history: History, verdict: CheckResult) -> Iterator[Violation]:
    """Check that a body has ended when the next body of its run starts."""
    frozen: dict[int, list[Freeze]] = defaultdict(list)
    for freeze in history.freezes:
        frozen[freeze.pid].append(freeze)
    for bodies in _bodies_by_run(history.body_signals).values():
        for earlier, later in _pairs(bodies):
            overlap = _live_overlap(earlier, later, frozen[earlier.pid])
            if (earlier.run_id, earlier.claim_number) in history.embedded:
                most = max(verdict.largest_embedded_overlap, overlap)
                verdict.largest_embedded_overlap = most
                continue
            verdict.largest_overlap = max(verdict.largest_overlap, overlap)
            if overlap > LIVE_OVERLAP_SECONDS:
                what = (
                    f"claim {earlier.claim_number} overlapped claim {later.claim_number} by "
                    f"{overlap:.3f} s"
                )
                yield Violation("I5 one holder", later.run_id, what)


class _BodySpan(NamedTuple):
    run_id: str
    claim_number: int
    pid: int
    began_at: float
    seen_at: float


def _bodies_by_run(signs: Sequence[BodySignal]) -> dict[str, list[_BodySpan]]:
    bodies: dict[tuple[str, int, int], _BodySpan] = {}
    for sign in signs:
        key = (sign.run_id, sign.claim_number, sign.pid)
        known = bodies.get(key)
        began_at = sign.at if known is None else min(known.began_at, sign.at)
        seen_at = sign.at if known is None else max(known.seen_at, sign.at)
        bodies[key] = _BodySpan(sign.run_id, sign.claim_number, sign.pid, began_at, seen_at)
    by_run: dict[str, list[_BodySpan]] = defaultdict(list)
    for body in bodies.values():
        by_run[body.run_id].append(body)
    return by_run


def _pairs(bodies: list[_BodySpan]) -> Iterator[tuple[_BodySpan, _BodySpan]]:
    if len(bodies) > 1:
        bodies.sort(key=lambda body: (body.claim_number, body.began_at))
        for place, earlier in enumerate(bodies):
            for later in bodies[place + 1 :]:
                yield earlier, later


def _live_overlap(earlier: _BodySpan, later: _BodySpan, freezes: list[Freeze]) -> float:
    """Return how long the earlier body ran during the later one, without its frozen time."""
    begin, end = later.began_at, earlier.seen_at
    if end <= begin:
        return 0.0
    asleep = sum(
        max(0.0, min(end, freeze.continued_at) - max(begin, freeze.stopped_at))
        for freeze in freezes
    )
    return max(0.0, end - begin - asleep)


def _check_final_state(history: History) -> Iterator[Violation]:
    if history.unfinished_after is not None:
        for run in history.runs:
            if run.state not in FINAL:
                what = f"still {run.state} after a drain of {history.unfinished_after:g} s"
                yield Violation("I13 progress", run.run_id, what)
    for worker_id in history.workers_left_live:
        yield Violation("I5 one holder", "", f"worker {worker_id} is dead but shown as live")
    for what in history.damage:
        yield Violation("I18 integrity", "", what)


def _violation_at(event: Transition, invariant: str, what: str) -> Violation:
    return Violation(invariant, event.run_id, what)
