"""The checker can fail: each history here has one deliberate violation."""

from dataclasses import replace

import pytest

from duly_prove.checker import check
from duly_prove.history import (
    AttemptAtEnd,
    BodySignal,
    DueInstant,
    Effect,
    EnqueueRequest,
    FiringAtEnd,
    Freeze,
    History,
    RunAtEnd,
    ScheduledRun,
    Transition,
)
from duly_prove.history_report import count_all, history_of_run

ORDER, CHARGE, NOTIFY = "order", "charge", "notify"


def event(
    sequence: int, kind: str, claim: int, *, state=None, worker="a", outcome=None
) -> Transition:
    """Return a transition of the run "o", the order."""
    return Transition(sequence, "o", kind, claim, 1, state, worker, outcome, sequence * 1000)


def sign(kind: str, run_id: str, claim: int, at: float, pid: int = 1) -> BodySignal:
    """Return a sign of life of a body."""
    task = {"o": ORDER, "c": CHARGE, "n": NOTIFY}[run_id]
    return BodySignal(kind, run_id, claim, 1, task, pid, at, int(at * 1_000_000))


def run(run_id: str, task: str, state: str = "succeeded", claim: int = 1) -> RunAtEnd:
    """Return a run in its final state."""
    result = str(claim) if state == "succeeded" else None
    return RunAtEnd(run_id, task, state, None, 1, claim, 1, 0, result, 1)


READY = event(1, "ready", 0)
CLAIM = event(2, "claim", 1)
REQUEUE = event(3, "requeue", 1, state="queued")
SECOND_CLAIM = event(4, "claim", 2, worker="b")
END = event(5, "end", 2, state="succeeded", worker="b", outcome="returned")

GOOD = History(
    requests=[
        EnqueueRequest(kind, i, t)
        for kind in ("invoked", "accepted")
        for i, t in (("o", ORDER), ("c", CHARGE), ("n", NOTIFY))
    ],
    transitions=None,
    body_signals=[sign("begin", "c", 1, 1.0), sign("end", "c", 1, 1.1)],
    effects=[
        Effect("o", 2, 1, ORDER, "row"),
        Effect("c", 1, 1, CHARGE, "line"),
        Effect("n", 1, 1, NOTIFY, "line"),
    ],
    runs=[run("o", ORDER, claim=2), run("c", CHARGE), run("n", NOTIFY)],
    attempts=[AttemptAtEnd("o", 1, 1, "lost", "a")],
    transactional=frozenset({ORDER}),
    hold_tasks=frozenset({CHARGE}),
)
GOOD_EVENTS = [READY, CLAIM, REQUEUE, SECOND_CLAIM, END]


def with_events(*events: Transition) -> History:
    """Return a history of only the order, with these transitions."""
    return replace(
        GOOD,
        requests=[r for r in GOOD.requests if r.run_id == "o"],
        runs=GOOD.runs[:1],
        effects=GOOD.effects[:1],
        body_signals=(),
        transitions=list(events),
    )


def broken(history: History) -> set[str]:
    """Return the numbers of the violated invariants."""
    return {violation.invariant.partition(" ")[0] for violation in check(history).violations}


@pytest.mark.parametrize("history", [GOOD, with_events(*GOOD_EVENTS)], ids=["effects", "events"])
def test_the_checker_accepts_a_sound_history(history: History):
    assert check(history).violations == []


def test_a_repeated_effect_of_a_rerun_task_is_counted_but_is_no_violation():
    again = replace(GOOD, effects=[*GOOD.effects, Effect("n", 2, 1, NOTIFY, "line")])
    verdict = check(again)

    assert verdict.holds
    assert count_all(again, verdict)["rerun_effects_again"] == 1


BROKEN = {
    "an accepted run that is missing": ("I1", replace(GOOD, runs=GOOD.runs[:2])),
    "a run that was never enqueued": (
        "I2",
        replace(GOOD, runs=[*GOOD.runs, run("x", NOTIFY)]),
    ),
    "a run without its effect": ("I1", replace(GOOD, effects=GOOD.effects[:2])),
    "an effect without a run": (
        "I2",
        replace(GOOD, effects=[*GOOD.effects, Effect("x", 1, 1, NOTIFY, "line")]),
    ),
    "a gap in the claim numbers": (
        "I4",
        with_events(READY, CLAIM, REQUEUE, SECOND_CLAIM._replace(claim_number=3), END),
    ),
    "a claim number used twice": (
        "I4",
        with_events(READY, CLAIM, REQUEUE, CLAIM._replace(sequence=4), END),
    ),
    "a claim that was not counted": ("I4", with_events(READY, CLAIM, END)),
    "a claim while it runs": ("I5", with_events(READY, CLAIM, SECOND_CLAIM, END)),
    "a stale settle": (
        "I6",
        with_events(READY, CLAIM, REQUEUE, SECOND_CLAIM, END._replace(claim_number=1)),
    ),
    "a settle of a run without a worker": ("I6", with_events(READY, CLAIM, REQUEUE, END)),
    "a settle in another worker's name": (
        "I6",
        with_events(READY, CLAIM, REQUEUE, SECOND_CLAIM, END._replace(worker_id="a")),
    ),
    "the result of a claim that was lost": (
        "I6",
        replace(GOOD, runs=[GOOD.runs[0]._replace(result="1"), *GOOD.runs[1:]]),
    ),
    "a row that a lost claim wrote": (
        "I6",
        replace(GOOD, effects=[GOOD.effects[0]._replace(claim_number=1), *GOOD.effects[1:]]),
    ),
    "a claim after the end": (
        "I7",
        with_events(*GOOD_EVENTS, event(6, "claim", 3)),
    ),
    "queued again after the end": ("I7", with_events(*GOOD_EVENTS, event(6, "ready", 2))),
    "an end that was rewritten": (
        "I7",
        with_events(*GOOD_EVENTS, event(6, "rewrite", 2, state="cancelled")),
    ),
    "two successes": ("I8", with_events(*GOOD_EVENTS, END._replace(sequence=6))),
    "a doubled row": (
        "I9",
        replace(GOOD, effects=[*GOOD.effects, GOOD.effects[0]]),
    ),
    "a row of a run that failed": (
        "I9",
        replace(
            GOOD,
            runs=[run("o", ORDER, "interrupted", claim=2), *GOOD.runs[1:]],
        ),
    ),
    "a hold task with two effects": (
        "I11",
        replace(GOOD, effects=[*GOOD.effects, Effect("c", 2, 1, CHARGE, "line")]),
    ),
    "a hold task that began twice": (
        "I11",
        replace(GOOD, body_signals=[*GOOD.body_signals, sign("begin", "c", 2, 2.0)]),
    ),
    "a hold task that succeeded without its effect": (
        "I11",
        replace(GOOD, effects=[GOOD.effects[0], GOOD.effects[2]]),
    ),
    "a hold task that had begun and waits to run again": (
        "I11",
        replace(GOOD, runs=[GOOD.runs[0], run("c", CHARGE, "queued"), GOOD.runs[2]]),
    ),
    "a run that is always lost": (
        "I12",
        replace(GOOD, attempts=[AttemptAtEnd("o", n, 1, "lost", "a") for n in range(1, 20)]),
    ),
    "a charge without a kill": ("I12", replace(GOOD, crash_charges_allowed=False)),
    "a failure that no body raised": (
        "I12",
        replace(
            GOOD,
            runs=[*GOOD.runs[:2], run("n", NOTIFY, "failed")._replace(cause="raised")],
        ),
    ),
    "a run that never ends": (
        "I13",
        replace(GOOD, runs=[*GOOD.runs[:2], run("n", NOTIFY, "queued")], unfinished_after=9.0),
    ),
    "a run in two tables": (
        "I14",
        replace(GOOD, runs=[*GOOD.runs[:2], run("n", NOTIFY)._replace(places=2)]),
    ),
    "a run that a snapshot missed": ("I14", replace(GOOD, missing=["o"])),
    "a final run that became live again": ("I19", replace(GOOD, went_back=["o"])),
    "a damaged database": ("I18", replace(GOOD, damage=["wrong # of entries in index"])),
    "a dead worker that counts as live": ("I5", replace(GOOD, workers_left_live=["a"])),
}


@pytest.mark.parametrize(("invariant", "history"), BROKEN.values(), ids=BROKEN)
def test_a_broken_history_is_found(invariant: str, history: History):
    assert invariant in broken(history)


class TestTwoBodiesOfOneRun:
    """The second body may start only after the first has ended, except for frozen time."""

    def history(self, *, seen_again_at: float, frozen: tuple[Freeze, ...] = ()) -> History:
        """Return a history where claim 1 is seen again while claim 2 runs."""
        signs = [
            sign("begin", "n", 1, 1.0, pid=1),
            sign("beat", "n", 1, seen_again_at, pid=1),
            sign("begin", "n", 2, 3.0, pid=2),
            sign("end", "n", 2, 9.0, pid=2),
        ]
        return replace(GOOD, body_signals=[*GOOD.body_signals, *signs], freezes=frozen)

    def test_consecutive_bodies_are_sound(self):
        assert check(self.history(seen_again_at=2.9)).largest_overlap == 0.0

    def test_overlapping_bodies_are_a_violation(self):
        assert broken(self.history(seen_again_at=5.0)) == {"I5"}

    def test_an_overlap_while_the_first_body_is_frozen_is_no_violation(self):
        frozen = (Freeze(1, 2.0, 4.997),)
        verdict = check(self.history(seen_again_at=5.0, frozen=frozen))

        assert verdict.holds
        assert verdict.largest_overlap == pytest.approx(0.003)

    def test_an_overlap_after_the_first_body_wakes_up_is_a_violation(self):
        frozen = (Freeze(1, 2.0, 4.98),)

        assert broken(self.history(seen_again_at=5.0, frozen=frozen)) == {"I5"}

    def test_an_overlap_in_an_embedded_worker_is_only_measured(self):
        history = self.history(seen_again_at=5.0)
        history.embedded = frozenset({(sign.run_id, 1) for sign in history.body_signals})
        verdict = check(history)

        assert verdict.holds
        assert verdict.largest_overlap == 0.0
        assert verdict.largest_embedded_overlap == pytest.approx(2.0)


class TestSchedules:
    """Due instants, firings and runs match one to one."""

    def firing(self, instant: int, outcome: str = "run", *, last: int = 0, row: int = 1):
        """Return the firing of an instant, or of a row of instants."""
        run_id = None if outcome in {"skipped", "waiting"} else f"r{instant}"
        return FiringAtEnd("s", 1, instant, last or instant, row, outcome, None, run_id)

    def history(self, *firings: FiringAtEnd, runs=(), may_skip=False) -> History:
        """Return a history where 1 to 4 were due, with these firings and their runs."""
        made = [ScheduledRun(f.run_id, "s") for f in firings if f.run_id is not None]
        return History(
            due=[DueInstant("s", 1, instant) for instant in (1, 2, 3, 4)],
            firings=firings,
            scheduled_runs=[*made, *runs],
            may_skip=frozenset({"s"} if may_skip else ()),
        )

    def all_fired(self, *, but: int = 0) -> list[FiringAtEnd]:
        """Return a firing for every instant except one."""
        return [self.firing(instant) for instant in (1, 2, 3, 4) if instant != but]

    def test_one_firing_and_one_run_for_every_instant_is_sound(self):
        assert check(self.history(*self.all_fired())).violations == []

    def test_a_skipped_row_of_firings_covers_its_instants(self):
        row = self.firing(1, "skipped", last=3, row=3)

        assert check(self.history(row, self.firing(4), may_skip=True)).holds
        assert not check(self.history(row, self.firing(4))).holds

    @pytest.mark.parametrize("missed", [1, 2, 4])
    def test_an_instant_that_did_not_fire_is_found(self, missed):
        history = self.history(*self.all_fired(but=missed))
        verdict = check(history)

        assert broken(history) == {"I15"}
        assert count_all(history, verdict)["instants_missed"] == 1
        assert str(missed) in verdict.violations[0].what

    def test_other_broken_ledgers_are_found(self):
        good = self.all_fired()
        for history in (
            self.history(*good, self.firing(9)),
            self.history(*good, self.firing(2)),
            self.history(*good[:3], self.firing(4, "waiting")),
            self.history(*good[:3], self.firing(4)._replace(version=2)),
            self.history(*good[:3], self.firing(4)._replace(run_id="r1")),
            self.history(*good, runs=[ScheduledRun("nobody's", "s")]),
            self.history(self.firing(1, "skipped", last=3, row=2), good[3], may_skip=True),
            replace(self.history(*good), scheduled_runs=[ScheduledRun("r1", "s")]),
        ):
            assert broken(history) == {"I15"}

    def test_runs_of_a_schedule_are_not_reported_as_invented(self):
        made = self.history(*self.all_fired())
        runs = [run(f"r{instant}", NOTIFY) for instant in (1, 2, 3, 4)]
        effects = [Effect(f"r{instant}", 1, 1, NOTIFY, "line") for instant in (1, 2, 3, 4)]

        assert check(replace(made, runs=runs, effects=effects)).violations == []


def test_the_timeline_of_a_run_is_in_order():
    told = history_of_run(with_events(*reversed(GOOD_EVENTS)), "o")

    assert [entry["kind"] for entry in told[:-1]] == ["ready", "claim", "requeue", "claim", "end"]
    assert told[-1]["place"] == "row"
