"""The positions and labels of the bars of a run. These tests use no store."""

from duly.core.record import AttemptRecord, RunRecord, StepRecord
from duly.dashboard.waterfall import waterfall

MS = 1_000
RUN = RunRecord(
    *("run", "shop:send", "default", "thread", "succeeded", None, 0, 1, 1, 1, 0, 0),
    *(0, 0, None, None, None, None, False, None, None, None, "[[],{}]", None),
    *(None, None, None, None, None),
)


def attempt(began, ended, outcome, *, number=1, generation=1, traceback=None):
    place = ("run", began, generation, number, outcome, "w")
    return AttemptRecord(*place, began * MS, ended * MS, None, traceback)


def step(name, began, ended, *, kind="step", wake_at=None):
    done = ended is not None
    place = ("run", name, kind, done, None, None if wake_at is None else wake_at * MS)
    return StepRecord(*place, None, 1, began * MS, None if ended is None else ended * MS)


def bars(run, attempts=(), steps=(), now=1_000):
    """Return the bars as (kind, label, from, until) in milliseconds."""
    rows = waterfall(run, attempts, steps, now * MS)
    assert all(row.x >= 0 and row.x + row.width <= 100.001 for row in rows)
    return [
        (row.span.kind, row.span.label, row.span.begin // MS, row.span.end // MS) for row in rows
    ]


def test_a_run_waits_runs_its_steps_and_ends():
    run = RUN._replace(finished_at=30 * MS)

    assert bars(run, [attempt(10, 30, "returned")], [step("a", 15, 15), step("b", 25, 25)]) == [
        ("queue", "in the queue", 0, 10),
        ("attempt", "attempt 1", 10, 30),
        ("step", "a", 10, 15),
        ("step", "b", 15, 25),
    ]


def begun(name, began, *, claim, ended=None):
    """Return a step with `on_crash="hold"`, whose start is recorded."""
    return step(name, began, ended)._replace(claim_number=claim)


def test_a_step_that_a_run_was_interrupted_in_ends_with_its_attempt():
    run = RUN._replace(state="interrupted", finished_at=30 * MS)
    tries = [attempt(10, 30, "lost")]

    rows = waterfall(run, tries, [begun("charge", 15, claim=10)], 90_000 * MS)

    *_, last = rows
    assert bars(run, tries, [begun("charge", 15, claim=10)], now=90_000) == [
        ("queue", "in the queue", 0, 10),
        ("attempt", "attempt 1", 10, 30),
        ("step", "charge", 15, 30),
    ]
    assert (last.span.is_open, last.span.note, last.span.is_bad) == (False, "interrupted", True)


def test_a_retry_that_stops_at_an_interrupted_step_does_not_prolong_the_step():
    run = RUN._replace(state="interrupted", generation=2, finished_at=501 * MS, due_at=500 * MS)
    tries = [attempt(10, 30, "timed_out"), attempt(500, 501, "vanished", generation=2)]

    assert bars(run, tries, [begun("charge", 15, claim=10)], now=900) == [
        ("queue", "in the queue", 0, 10),
        ("attempt", "attempt 1", 10, 30),
        ("step", "charge", 15, 30),
        ("pause", "ended, before the retry", 30, 500),
        ("attempt", "attempt 1, generation 2", 500, 501),
    ]


def test_a_step_that_a_person_marked_as_done_ended_with_its_attempt():
    run = RUN._replace(generation=2, finished_at=620 * MS, due_at=600 * MS)
    tries = [attempt(10, 30, "lost"), attempt(610, 620, "returned", generation=2)]
    resolved = begun("charge", 15, claim=10, ended=600)

    found = waterfall(run, tries, [resolved], 900 * MS)

    (charge,) = [row.span for row in found if row.span.label == "charge"]
    assert (charge.begin, charge.end) == (15 * MS, 30 * MS)
    assert charge.note == "marked done by an operator"


def test_a_step_that_still_runs_is_open():
    run = RUN._replace(state="running", claim_number=5, claimed_at=10 * MS)

    rows = waterfall(run, [], [begun("charge", 15, claim=5)], 90 * MS)

    assert (rows[-1].span.end, rows[-1].span.is_open) == (90 * MS, True)


def test_a_delay_is_not_drawn_as_time_in_the_queue():
    delayed = RUN._replace(due_at=40 * MS, finished_at=60 * MS)
    waiting = RUN._replace(state="queued", due_at=40 * MS)

    assert bars(delayed, [attempt(50, 60, "returned")])[:2] == [
        ("pause", "delayed", 0, 40),
        ("queue", "in the queue", 40, 50),
    ]
    assert bars(waiting, now=20) == [("pause", "delayed", 0, 20)]
    assert bars(waiting, now=45) == [("pause", "delayed", 0, 40), ("queue", "in the queue", 40, 45)]


def test_retries_are_drawn_separately_from_their_back_off():
    run = RUN._replace(due_at=90 * MS, finished_at=110 * MS, attempt=3)
    tries = [
        attempt(5, 10, "raised"),
        attempt(40, 50, "timed_out", number=2),
        attempt(95, 110, "returned", number=3),
    ]

    assert bars(run, tries) == [
        ("queue", "in the queue", 0, 5),
        ("attempt", "attempt 1", 5, 10),
        ("pause", "back-off", 10, 40),
        ("attempt", "attempt 2", 40, 50),
        ("pause", "back-off", 50, 90),
        ("queue", "in the queue", 90, 95),
        ("attempt", "attempt 3", 95, 110),
    ]


def test_an_attempt_that_sleeps_has_parts_and_its_sleep_is_not_drawn_as_queue_time():
    run = RUN._replace(finished_at=110 * MS)
    tries = [attempt(5, 10, "suspended"), attempt(100, 110, "returned")]

    assert bars(run, tries, [step("nap", 9, 101, kind="sleep", wake_at=80)]) == [
        ("queue", "in the queue", 0, 5),
        ("attempt", "attempt 1", 5, 10),
        ("sleep", "nap", 9, 80),
        ("queue", "in the queue", 80, 100),
        ("attempt", "attempt 1, part 2", 100, 110),
    ]


def test_a_wait_belongs_to_the_attempt_part_that_starts_after_it():
    run = RUN._replace(finished_at=110 * MS)
    tries = [
        *(attempt(5, 10, "suspended"), attempt(60, 70, "suspended"), attempt(100, 110, "returned")),
    ]
    steps = [
        step("nap", 9, 58, kind="sleep", wake_at=50),
        step("gather", 59, 102, kind="gather"),
    ]

    assert bars(run, tries, steps) == [
        ("queue", "in the queue", 0, 5),
        ("attempt", "attempt 1", 5, 10),
        ("sleep", "nap", 9, 50),
        ("queue", "in the queue", 50, 59),
        ("attempt", "attempt 1, part 2", 59, 70),
        ("gather", "gather", 59, 100),
        ("attempt", "attempt 1, part 3", 100, 110),
    ]


def test_the_bar_of_a_run_that_waits_for_an_event_continues():
    run = RUN._replace(state="queued", due_at=10**15)
    rows = waterfall(
        run, [attempt(5, 10, "suspended")], [step("paid", 9, None, kind="wait")], 50 * MS
    )

    assert [(row.span.kind, row.span.is_open) for row in rows] == [
        ("queue", False),
        ("attempt", False),
        ("wait", True),
    ]


def test_the_step_that_raised_is_drawn():
    traceback = 'Traceback …\nValueError: no\n(in step "print")\n(in step "outer")\n'
    tries = [attempt(10, 30, "raised", traceback=traceback)]

    rows = waterfall(RUN._replace(finished_at=30 * MS), tries, [step("a", 15, 15)], 40 * MS)

    last = rows[-1].span
    assert (last.kind, last.label, last.begin, last.end) == ("step", "print", 15 * MS, 30 * MS)
    assert last.is_bad


def test_a_lost_run_is_taken_over_at_once_and_a_retry_starts_a_generation():
    run = RUN._replace(generation=2, due_at=70 * MS, finished_at=90 * MS)
    tries = [
        attempt(5, 10, "lost"),
        attempt(12, 20, "raised", number=2),
        attempt(80, 90, "returned", generation=2),
    ]

    assert [bar[:2] for bar in bars(run, tries)] == [
        ("queue", "in the queue"),
        ("attempt", "attempt 1"),
        ("queue", "in the queue"),
        ("attempt", "attempt 2"),
        ("pause", "ended, before the retry"),
        ("queue", "in the queue"),
        ("attempt", "attempt 1, generation 2"),
    ]


def test_the_bar_of_a_running_attempt_grows():
    run = RUN._replace(state="running", claimed_at=20 * MS, claim_number=1)

    rows = waterfall(run, [], [], 50 * MS)

    assert rows[-1].span.words == "30.000 ms so far"
