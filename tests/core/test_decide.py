"""The verdict on every outcome of an attempt, on every lane, with and without a cancel request."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core.outcome import (
    OUTCOME_NAMES,
    Cancelled,
    ErrorText,
    HandedBack,
    Lost,
    Outage,
    Raised,
    Refused,
    Returned,
    Snoozed,
    Stopped,
    Suspended,
    TimedOut,
    Vanished,
)
from duly.core.retry import Retry
from duly.core.states import (
    CARRIED_SLOT_KINDS,
    FINAL,
    HOLD_SLOT_KINDS,
    TRANSITIONS,
    SlotKind,
    State,
    slot_kind_for,
)
from duly.core.verdict import (
    UNKNOWN_POLICY,
    AttemptState,
    Finish,
    Requeue,
    VerdictPolicy,
    decide,
    describe,
)
from duly.limits import CRASH_LIMIT

BOOM = ErrorText("ValueError", "boom", "Traceback ...", "print")
LATE = ErrorText("AttemptTimedOut", "", "", "late")
RERUN_LANES = [lane for lane in SlotKind if lane not in HOLD_SLOT_KINDS]

# The run of the table is in its fourth attempt, after two of three retries and one crash.
ATTEMPT, RETRIES_USED, CRASHES = 4, 2, 1
POLICY = VerdictPolicy(Retry(3, base=10.0, factor=1.0, jitter=False))
POLICY_USED_UP = VerdictPolicy(Retry(2))

SAME = "the lane of the run"


class Ends(NamedTuple):
    """The expected verdict: the run ends."""

    state: State
    cause: str | None = None
    result: str | None = None


class Goes(NamedTuple):
    """The expected verdict: the run is requeued, with these changes."""

    after: float = 0.0
    attempts: int = 0
    retries: int = 0
    crashes: int = 0
    lane: str = SAME
    recorded: bool = True
    awaits: str | None = None
    planned: bool = False


SUCCEEDED = Ends(State.SUCCEEDED, None, "42")
CANCELLED = Ends(State.CANCELLED, "requested")
RAISED = Ends(State.FAILED, "raised")
TIMED_OUT = Ends(State.FAILED, "timed_out")
HELD_LATE = Ends(State.INTERRUPTED, "timed_out")
HELD_CRASHED = Ends(State.INTERRUPTED, "crashed")
REFUSED = Ends(State.INTERRUPTED, "not_persisted")
HELD_STOPPED = Ends(State.INTERRUPTED, "stopped")
HELD_OUTAGE = Ends(State.INTERRUPTED, "outage")
RETRIED = Goes(after=10.0, attempts=1, retries=1)
RETRIED_IN_7 = Goes(after=7.0, attempts=1, retries=1, planned=True)
SNOOZED = Goes(after=30.0)
SUSPENDED = Goes(after=60.0, awaits="paid")
STOPPED = Goes()
OUTAGE = Goes(after=2.0)
HANDED_BACK = Goes(recorded=False)
LOST = Goes(attempts=1, lane=SlotKind.SUSPECT)
LOST_CHARGED = Goes(attempts=1, crashes=1, lane=SlotKind.SUSPECT)

OUTCOMES = {
    "returned": Returned("42"),
    "raised": Raised(BOOM, retryable=True),
    "raised an error that is named": Raised(BOOM, retryable=True, named=True),
    "raised a final error": Raised(BOOM, retryable=False),
    "could not be decoded": Raised(BOOM, retryable=False, cause="undecodable"),
    "asked for a retry in 7 s": Raised(BOOM, retryable=True, named=True, after=7.0),
    "timed out": TimedOut(LATE),
    "snoozed for 30 s": Snoozed(30.0),
    "waits for a step": Suspended(60.0, "paid"),
    "a step vanished": Vanished("charge"),
    "was refused": Refused("not_persisted", "its process is gone"),
    "accepted a cancel": Cancelled("requested"),
    "discarded itself": Cancelled("discarded", "no such user any more"),
    "was stopped": Stopped(),
    "ended by an outage": Outage(BOOM, after=2.0),
    "was handed back": HandedBack(),
    "lost before its start": Lost(started=False, charged=False),
    "lost, with others": Lost(started=True, charged=False),
    "lost, alone": Lost(started=True, charged=True),
    "lost when overdue": Lost(started=True, charged=True, overdue=True),
}

UNDECODABLE = Ends(State.FAILED, "undecodable")
DISCARDED = Ends(State.CANCELLED, "discarded")

# One row per outcome, for a run with retries and crashes left.
#     outcome                        rerun         and cancel    hold          and cancel
TABLE = [
    ("returned",                     SUCCEEDED,    SUCCEEDED,    SUCCEEDED,    SUCCEEDED),
    ("raised",                       RETRIED,      CANCELLED,    RAISED,       CANCELLED),
    ("raised an error that is named",  RETRIED,      CANCELLED,    RETRIED,      CANCELLED),
    ("raised a final error",         RAISED,       CANCELLED,    RAISED,       CANCELLED),
    ("could not be decoded",         UNDECODABLE,  CANCELLED,    UNDECODABLE,  CANCELLED),
    ("asked for a retry in 7 s",     RETRIED_IN_7, CANCELLED,    RETRIED_IN_7, CANCELLED),
    ("timed out",                    RETRIED,      CANCELLED,    HELD_LATE,    HELD_LATE),
    ("snoozed for 30 s",             SNOOZED,      CANCELLED,    SNOOZED,      CANCELLED),
    ("waits for a step",             SUSPENDED,    CANCELLED,    SUSPENDED,    CANCELLED),
    ("a step vanished",              HELD_CRASHED, HELD_CRASHED, HELD_CRASHED, HELD_CRASHED),
    ("was refused",                  REFUSED,      CANCELLED,    REFUSED,      CANCELLED),
    ("accepted a cancel",            CANCELLED,    CANCELLED,    CANCELLED,    CANCELLED),
    ("discarded itself",             DISCARDED,    DISCARDED,    DISCARDED,    DISCARDED),
    ("was stopped",                  STOPPED,      CANCELLED,    HELD_STOPPED, HELD_STOPPED),
    ("ended by an outage",           OUTAGE,       CANCELLED,    HELD_OUTAGE,  HELD_OUTAGE),
    ("was handed back",              HANDED_BACK,  CANCELLED,    HANDED_BACK,  CANCELLED),
    ("lost before its start",        HANDED_BACK,  CANCELLED,    HANDED_BACK,  CANCELLED),
    ("lost, with others",            LOST,         CANCELLED,    HELD_CRASHED, HELD_CRASHED),
    ("lost, alone",                  LOST_CHARGED, CANCELLED,    HELD_CRASHED, HELD_CRASHED),
    ("lost when overdue",            RETRIED,      CANCELLED,    HELD_LATE,    HELD_LATE),
]  # fmt: skip

# The rows that differ when no retries are left.
TABLE_OF_THE_LAST_TRY = [
    ("raised",                       RAISED,       CANCELLED,    RAISED,       CANCELLED),
    ("raised an error that is named",  RAISED,       CANCELLED,    RAISED,       CANCELLED),
    ("asked for a retry in 7 s",     RAISED,       CANCELLED,    RAISED,       CANCELLED),
    ("timed out",                    TIMED_OUT,    CANCELLED,    HELD_LATE,    HELD_LATE),
    ("lost when overdue",            TIMED_OUT,    CANCELLED,    HELD_LATE,    HELD_LATE),
]  # fmt: skip


def cases(table):
    found = []
    for name, *verdicts in table:
        for lane in SlotKind:
            calm, asked = verdicts[2:] if lane in HOLD_SLOT_KINDS else verdicts[:2]
            found += [
                pytest.param(name, lane, False, calm, id=f"{name}-{lane}"),
                pytest.param(name, lane, True, asked, id=f"{name}-{lane}-cancel requested"),
            ]
    return found


def standing(lane, *, cancel=False, crashes=CRASHES):
    return AttemptState(ATTEMPT, RETRIES_USED, crashes, lane, cancel_requested=cancel)


HANDED = {SlotKind.HANDED: SlotKind.CARRIED, SlotKind.HANDED_HOLD: SlotKind.CARRIED_HOLD}


def lane_after(lane, expected=SAME):
    """Return the next lane of a run. A carried run is handed over again and never suspect."""
    if expected == SAME or (expected == SlotKind.SUSPECT and lane in CARRIED_SLOT_KINDS):
        return HANDED.get(lane, lane)
    return expected


def verdict_of(expected, lane):
    if isinstance(expected, Ends):
        return Finish(*expected)
    if expected is LOST and lane in CARRIED_SLOT_KINDS:
        expected = LOST_CHARGED  # A carried run cannot be watched alone.
    return Requeue(
        expected.after,
        ATTEMPT + expected.attempts,
        RETRIES_USED + expected.retries,
        CRASHES + expected.crashes,
        lane_after(lane, expected.lane),
        expected.recorded,
        expected.awaits,
        expected.planned,
    )


@pytest.mark.parametrize(("outcome", "lane", "cancel", "expected"), cases(TABLE))
def test_the_verdict_on_a_run_with_retries_left_matches_the_table(outcome, lane, cancel, expected):
    verdict = decide(standing(lane, cancel=cancel), OUTCOMES[outcome], POLICY, jitter=0.0)

    assert verdict == verdict_of(expected, lane)


@pytest.mark.parametrize(("outcome", "lane", "cancel", "expected"), cases(TABLE_OF_THE_LAST_TRY))
def test_the_verdict_on_a_run_without_retries_left_matches_the_table(
    outcome, lane, cancel, expected
):
    verdict = decide(standing(lane, cancel=cancel), OUTCOMES[outcome], POLICY_USED_UP, jitter=0.0)

    assert verdict == verdict_of(expected, lane)


def test_the_verdict_tables_have_a_row_for_every_outcome_of_an_attempt():
    assert {row[0] for row in TABLE} == set(OUTCOMES)
    assert {type(outcome) for outcome in OUTCOMES.values()} == set(OUTCOME_NAMES)


@pytest.mark.parametrize("lane", RERUN_LANES)
def test_the_last_allowed_crash_fails_the_run(lane):
    run = standing(lane, crashes=CRASH_LIMIT - 1)

    verdict = decide(run, Lost(started=True, charged=True), POLICY, jitter=0.0)

    assert verdict == Finish(State.FAILED, "crashed")


@pytest.mark.parametrize("lane", [lane for lane in RERUN_LANES if lane not in CARRIED_SLOT_KINDS])
def test_a_crash_that_is_not_charged_does_not_count_toward_the_limit(lane):
    run = standing(lane, crashes=CRASH_LIMIT - 1)

    verdict = decide(run, Lost(started=True, charged=False), POLICY, jitter=0.0)

    again = lane_after(lane, SlotKind.SUSPECT)
    assert verdict == Requeue(0.0, ATTEMPT + 1, RETRIES_USED, CRASH_LIMIT - 1, again)


@pytest.mark.parametrize("lane", [SlotKind.CARRIED, SlotKind.HANDED, "~task key thread"])
def test_a_run_that_cannot_be_watched_alone_is_charged_for_every_loss_but_the_first(lane):
    verdicts = [
        decide(
            AttemptState(attempt, 0, crashes, lane),
            Lost(started=True, charged=False),
            POLICY,
            jitter=0.0,
        )
        for attempt, crashes in ((1, 0), (2, 0), (3, CRASH_LIMIT - 1))
    ]

    assert [verdict.crashes for verdict in verdicts[:2]] == [0, 1]
    assert verdicts[2] == Finish(State.FAILED, "crashed")


@pytest.mark.parametrize("lane", RERUN_LANES)
@pytest.mark.parametrize("charged", [False, True])
def test_a_run_that_is_lost_for_the_first_time_keeps_its_lane(lane, charged):
    run = AttemptState(attempt=3, retries_used=2, crashes=0, lane=lane)

    verdict = decide(run, Lost(started=True, charged=charged), POLICY, jitter=0.0)

    assert verdict == Requeue(0.0, 4, 2, int(charged), lane_after(lane))


def test_a_crash_uses_no_retry():
    verdict = decide(
        standing(SlotKind.THREAD), Lost(started=True, charged=True), POLICY_USED_UP, jitter=0.0
    )

    assert verdict == verdict_of(LOST_CHARGED, SlotKind.THREAD)


@pytest.mark.parametrize("outcome", ["raised", "snoozed for 30 s", "timed out"])
def test_the_next_attempt_uses_the_lane_of_the_current_code(outcome):
    policy = POLICY._replace(lane=SlotKind.PROCESS)

    verdict = decide(standing(SlotKind.SUSPECT), OUTCOMES[outcome], policy, jitter=0.0)

    assert verdict.lane == SlotKind.PROCESS


@pytest.mark.parametrize("outcome", ["was handed back", "was stopped"])
def test_a_run_that_was_stopped_or_handed_back_keeps_its_lane(outcome):
    policy = POLICY._replace(lane=SlotKind.PROCESS)

    verdict = decide(standing(SlotKind.SUSPECT), OUTCOMES[outcome], policy, jitter=0.0)

    assert verdict.lane == SlotKind.SUSPECT


@pytest.mark.parametrize(("jitter", "after"), [(0.0, 5.0), (0.5, 7.5)])
def test_the_jitter_spreads_the_retry(jitter, after):
    policy = VerdictPolicy(Retry(3, base=10.0, factor=1.0))

    verdict = decide(standing(SlotKind.LOOP), OUTCOMES["raised"], policy, jitter=jitter)

    assert verdict.after == after


def test_recovery_without_a_policy_never_retries_an_overdue_run():
    verdict = decide(
        standing(SlotKind.LOOP), OUTCOMES["lost when overdue"], UNKNOWN_POLICY, jitter=0.0
    )

    assert verdict == Finish(State.FAILED, "timed_out")


runs = st.builds(
    AttemptState,
    attempt=st.integers(1, 100),
    retries_used=st.integers(0, 20),
    crashes=st.integers(0, CRASH_LIMIT + 1),
    lane=st.sampled_from(list(SlotKind)),
    cancel_requested=st.booleans(),
)
errors = st.just(BOOM)
outcomes = st.one_of(
    st.builds(Returned, st.none() | st.just("1")),
    st.builds(
        Raised,
        errors,
        retryable=st.booleans(),
        named=st.booleans(),
        after=st.none() | st.floats(0, 100),
    ),
    st.builds(TimedOut, errors),
    st.builds(Snoozed, st.floats(0, 100)),
    st.builds(Suspended, st.floats(0, 100), st.just("paid")),
    st.builds(Vanished, st.just("charge")),
    st.builds(Refused, st.just("not_persisted"), st.just("its process is gone")),
    st.builds(Cancelled, st.just("requested")),
    st.just(Stopped()),
    st.just(HandedBack()),
    st.builds(Lost, started=st.booleans(), charged=st.booleans(), overdue=st.booleans()),
)
policies = st.builds(
    VerdictPolicy,
    st.builds(Retry, st.integers(0, 20)),
    lane=st.none() | st.sampled_from(list(SlotKind)),
)


@given(run=runs, outcome=outcomes, policy=policies, jitter=st.floats(0, 1, exclude_max=True))
def test_a_verdict_always_satisfies_the_invariants_of_the_engine(run, outcome, policy, jitter):
    verdict = decide(run, outcome, policy, jitter=jitter)

    if isinstance(verdict, Finish):
        assert verdict.state in TRANSITIONS[State.RUNNING] & FINAL
        assert (verdict.state is State.SUCCEEDED) == isinstance(outcome, Returned)
    else:
        assert verdict.after >= 0
        assert run.attempt <= verdict.attempt <= run.attempt + 1
        assert run.retries_used <= verdict.retries_used <= max(run.retries_used, policy.retry.limit)
        assert run.crashes <= verdict.crashes < max(run.crashes + 1, CRASH_LIMIT)


@given(run=runs, outcome=outcomes, policy=policies)
def test_a_run_with_a_cancel_request_is_never_queued_again(run, outcome, policy):
    run = run._replace(cancel_requested=True)

    verdict = decide(run, outcome, policy, jitter=0.0)

    assert isinstance(verdict, Finish)


@given(run=runs, outcome=outcomes, policy=policies)
def test_a_hold_run_is_requeued_only_if_it_never_started_or_its_code_requested_it(
    run, outcome, policy
):
    run = run._replace(lane=SlotKind.THREAD_HOLD)

    verdict = decide(run, outcome, policy, jitter=0.0)

    if isinstance(verdict, Requeue):
        never_started = outcome == HandedBack() or (
            isinstance(outcome, Lost) and not outcome.started
        )
        asked = isinstance(outcome, Snoozed | Suspended) or (
            isinstance(outcome, Raised) and outcome.named
        )
        assert never_started or asked


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("returned", None),
        ("raised", "ValueError: boom"),
        ("timed out", "AttemptTimedOut"),
        ("snoozed for 30 s", None),
        ("waits for a step", None),
        ("accepted a cancel", None),
        ("discarded itself", "Discard: no such user any more"),
        ("was stopped", "Stopped: the run was still running when the grace period ended"),
        ("was refused", "Refused: its process is gone"),
        ("was handed back", None),
        ("lost before its start", None),
        ("lost, alone", "Lost: its worker process died or lost its lease"),
    ],
)
def test_the_record_of_an_attempt_describes_its_error(outcome, text):
    error = describe(OUTCOMES[outcome])

    assert (None if error is None else str(error)) == text


@pytest.mark.parametrize(
    ("executor", "hold", "lane"),
    [
        ("loop", False, SlotKind.LOOP),
        ("thread", False, SlotKind.THREAD),
        ("process", False, SlotKind.PROCESS),
        ("loop", True, SlotKind.LOOP_HOLD),
        ("thread", True, SlotKind.THREAD_HOLD),
        ("process", True, SlotKind.PROCESS_HOLD),
    ],
)
def test_a_lane_names_the_executor_and_whether_a_crash_holds(executor, hold, lane):
    assert slot_kind_for(executor, hold=hold) is lane
    assert (lane in HOLD_SLOT_KINDS) == hold
