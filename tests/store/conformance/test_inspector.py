"""Lists of runs with filters and pages, dead letters, progress and log lines."""

import pytest

from duly.core.outcome import ErrorText
from duly.store.ops.runs import Settled
from duly.store.ops.updates import AddLogs, SetProgress
from duly.store.reads import RunFilter
from tests.store.conformance.verbs import (
    OTHER_TASK,
    SECOND,
    TASK,
    UNKNOWN_RUN,
    cancel,
    claim,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    fail,
    hand_back,
    listed_ids,
    pause,
    recover,
    redrive,
    retry_now,
    run_of,
    succeed,
    success,
    tick,
    unstarted,
)


def error_like(fingerprint, message="boom"):
    return ErrorText("ValueError", message, "Traceback", fingerprint)


def one_of_each(store):
    """Create a run in every place that there is; return their ids by state, newest first."""
    done, failed = enqueue_and_succeed(store), enqueue_and_fail(store)
    gone = enqueue_one(store)
    cancel(store, gone)
    held = enqueue_and_claim(store, lane="thread-hold").run_id
    recover(store)
    parked = enqueue_one(store, queue="stopped")
    pause(store, "stopped")
    tick(store)
    delayed, ready = enqueue_one(store, delay_seconds=60), enqueue_one(store)
    return {
        "succeeded": [done],
        "failed": [failed],
        "cancelled": [gone],
        "interrupted": [held],
        "queued": [ready, delayed, parked],
    }


def test_an_unknown_run_is_not_found(store):
    assert store.get_run(UNKNOWN_RUN) is None
    assert store.get_states([UNKNOWN_RUN]) == {}
    assert store.list_attempts(UNKNOWN_RUN) == []
    assert store.list_logs(UNKNOWN_RUN, 10) == []


def test_states_are_read_for_many_runs_at_once(store, worker):
    by_state = one_of_each(store)
    ids = [run_id for group in by_state.values() for run_id in group]

    states = store.get_states([*ids, UNKNOWN_RUN])

    assert states == {run_id: state for state, group in by_state.items() for run_id in group}


def test_no_filter_lists_every_run_newest_first(store, worker):
    by_state = one_of_each(store)

    ids = listed_ids(store)

    assert ids == sorted((run_id for group in by_state.values() for run_id in group), reverse=True)


@pytest.mark.parametrize("state", ["queued", "succeeded", "failed", "interrupted", "cancelled"])
def test_runs_are_listed_by_state(store, worker, state):
    by_state = one_of_each(store)

    assert listed_ids(store, states=(state,)) == by_state[state]


def test_running_runs_are_listed(store, worker):
    found = enqueue_and_claim(store)
    enqueue_one(store)

    assert listed_ids(store, states=("running",)) == [found.run_id]


def test_runs_are_listed_by_several_states(store, worker):
    by_state = one_of_each(store)

    dead = listed_ids(store, states=("failed", "interrupted"))
    ended = listed_ids(store, states=("failed", "succeeded"))

    assert dead == by_state["interrupted"] + by_state["failed"]
    assert ended == by_state["failed"] + by_state["succeeded"]


def test_runs_are_listed_by_task_and_queue(store, worker):
    mail = enqueue_one(store, task=TASK, queue="mail")
    bill = enqueue_one(store, task=OTHER_TASK, queue="mail")
    enqueue_one(store, task=TASK, queue="default")

    assert listed_ids(store, queue="mail") == [bill, mail]
    assert listed_ids(store, queue="mail", task=TASK) == [mail]
    assert listed_ids(store, task="nothing:such") == []


@pytest.mark.parametrize("few", [200, 2])
def test_runs_are_listed_by_tag_wherever_they_are(store, worker, few, monkeypatch):
    monkeypatch.setattr("duly.store.inspector.FEW_TAGGED", few)
    done = enqueue_and_succeed(store, tags={"customer": "17", "kind": "mail"})
    failed = enqueue_and_fail(store, tags={"customer": "17"})
    waiting = enqueue_one(store, tags={"customer": "17"}, delay_seconds=60)
    enqueue_one(store, tags={"customer": "1"})
    enqueue_one(store, tags={"other": "17"})

    assert listed_ids(store, tag=("customer", "17")) == [waiting, failed, done]
    assert listed_ids(store, tag=("customer", "17"), states=("failed",)) == [failed]
    assert listed_ids(store, tag=("kind", "mail")) == [done]


def test_runs_are_listed_by_age(store, worker, clock):
    enqueue_one(store)
    clock.advance(60)
    young = enqueue_one(store)

    assert listed_ids(store, since=clock.now() - 30 * SECOND) == [young]


def test_dead_letters_are_listed_by_fingerprint(store, worker):
    one = enqueue_and_fail(store, error=error_like("print-1"))
    enqueue_and_fail(store, error=error_like("print-2"))

    assert listed_ids(store, fingerprint="print-1") == [one]
    assert listed_ids(store, fingerprint="print-1", states=("failed",)) == [one]


@pytest.mark.parametrize(
    "which",
    [
        {},
        {"states": ("failed", "interrupted")},
        {"states": ("queued",)},
        {"tag": ("customer", "17")},
        {"queue": "default", "task": TASK},
    ],
    ids=str,
)
def test_pages_follow_each_other_without_gaps_or_repeats(store, worker, which):
    for _ in range(4):
        enqueue_and_succeed(store, tags={"customer": "17"})
        enqueue_and_fail(store, tags={"customer": "17"})
        enqueue_one(store, tags={"customer": "17"}, delay_seconds=60)
    all_ids = listed_ids(store, **which)
    pages, before = [], None

    while page := store.list_runs(RunFilter(**which, before=before, limit=3)):
        pages.append([run.id for run in page])
        before = page[-1].id
        # Runs that are enqueued between two pages are on no later page.
        enqueue_one(store, tags={"customer": "17"}, delay_seconds=60)

    assert [run_id for page in pages for run_id in page] == all_ids
    assert {len(page) for page in pages[:-1]} <= {3}


def test_a_listed_run_equals_the_run_that_is_read_by_id(store, worker):
    one_of_each(store)

    for run in store.list_runs(RunFilter(limit=100)):
        assert run == store.get_run(run.id)


def test_dead_letters_are_grouped_by_task_and_error(store, worker, clock):
    first_at = clock.now()
    for _ in range(3):
        last = enqueue_and_fail(store, error=error_like("print-1", "one"))
        last_at = clock.now()
        clock.advance(1)
    other = enqueue_and_fail(store, task=OTHER_TASK, error=error_like("print-1", "two"))
    without = enqueue_and_claim(store)
    fail(store, without, None)
    enqueue_and_succeed(store)

    groups = store.list_dead_groups(RunFilter())

    (biggest, *rest) = groups
    assert (biggest.task, biggest.fingerprint, biggest.count) == (TASK, "print-1", 3)
    assert (biggest.error, biggest.sample_id) == ("ValueError: one", last)
    assert (biggest.first_at, biggest.last_at) == (first_at, last_at)
    assert sorted((group.task, group.fingerprint, group.count) for group in rest) == [
        (OTHER_TASK, "print-1", 1),
        (TASK, "", 1),
    ]
    assert {group.sample_id for group in rest} == {other, without.run_id}


def test_dead_letters_are_counted_up_to_a_bound(store, worker, monkeypatch):
    before = store.count_dead(), store.count_interrupted()
    enqueue_and_fail(store)
    one_of_each(store)
    some = store.count_dead(), store.count_interrupted()
    monkeypatch.setattr("duly.store.inspector.DEAD_COUNT_CAP", 1)

    assert before == (0, 0)
    assert some == (3, 1)
    assert store.count_dead() == 2, "one more than the bound means that there are more"


def test_groups_of_dead_letters_are_filtered_too(store, worker):
    enqueue_and_fail(store, error=error_like("print-1"))
    enqueue_and_fail(store, task=OTHER_TASK, queue="mail", error=error_like("print-2"))

    def counted(**which):
        return [group.fingerprint for group in store.list_dead_groups(RunFilter(**which))]

    assert counted(task=TASK) == ["print-1"]
    assert counted(queue="mail") == ["print-2"]


def test_a_summary_counts_ends_by_queue(store, worker):
    enqueue_and_succeed(store)
    enqueue_and_succeed(store)
    enqueue_and_fail(store, queue="mail")
    enqueue_one(store)
    cancel(store, enqueue_one(store))

    found = {(row.queue, row.state): row for row in store.summarise()}

    assert {which: (row.runs, row.begun) for which, row in found.items()} == {
        ("default", "succeeded"): (2, 2),
        ("default", "cancelled"): (1, 0),
        ("mail", "failed"): (1, 1),
    }
    assert all(row.elapsed >= 0 for row in found.values())


def test_a_redriven_run_is_no_longer_a_dead_letter(store, worker):
    redrive(store, enqueue_and_fail(store))

    assert store.list_dead_groups(RunFilter()) == []


def test_acts_are_listed_newest_first(store, worker, clock):
    first, second = enqueue_one(store), enqueue_one(store)
    cancel(store, first)
    clock.advance(1)
    cancel(store, second)

    assert [act.subject for act in store.list_audit_entries(None, 10)] == [second, first]
    assert [act.subject for act in store.list_audit_entries(None, 1)] == [second]
    assert [act.subject for act in store.list_audit_entries(first, 10)] == [first]
    assert [store.has_audit_entry(subject) for subject in (first, "", f"{first} ")] == [
        True,
        False,
        False,
    ]


# -- what a running attempt reports --


def test_progress_is_shown_while_the_run_runs(store, worker):
    found = enqueue_and_claim(store)

    answer = store.apply([SetProgress(found.run_id, 1, 0.25, "reading")])
    store.do(SetProgress(found.run_id, 1, 0.5, None))

    run = run_of(store, found.run_id)
    assert answer == [True]
    assert (run.progress, run.progress_text) == (0.5, "reading")


def test_the_next_attempt_begins_without_progress(store, worker):
    found = enqueue_and_claim(store)
    store.do(SetProgress(found.run_id, 1, 0.25, "reading"))
    retry_now(store, found)
    claim_one(store)

    run = run_of(store, found.run_id)

    assert (run.progress, run.progress_text) == (None, None)


def test_log_lines_are_kept_in_order_with_their_attempt(store, worker, clock):
    found = enqueue_and_claim(store)
    now = clock.now()
    store.do(AddLogs(found.run_id, 1, ((now, "info", "one"), (now, "error", "two"))))
    retry_now(store, found)
    claim_one(store)
    store.do(AddLogs(found.run_id, 2, ((now + SECOND, "info", "three"),)))
    succeed(store, found._replace(claim_number=2))

    lines = store.list_logs(found.run_id, 10)

    assert [(line.claim_number, line.at, line.level, line.message) for line in lines] == [
        (1, now, "info", "one"),
        (1, now, "error", "two"),
        (2, now + SECOND, "info", "three"),
    ]
    assert len(store.list_logs(found.run_id, 2)) == 2


@pytest.mark.parametrize("count", [1, 11, 250])
def test_a_batch_of_log_lines_is_kept_whole(store, worker, clock, count):
    found = enqueue_and_claim(store)
    messages = [f"line {number}" for number in range(count)]

    store.do(AddLogs(found.run_id, 1, tuple((clock.now(), "info", m) for m in messages)))

    assert [line.message for line in store.list_logs(found.run_id, 1000)] == messages


@pytest.mark.parametrize("lose", [recover, None], ids=["recovered", "handed back"])
def test_a_worker_that_lost_its_claim_can_no_longer_report_progress_or_log_lines(
    store, worker, tables, lose
):
    found = enqueue_and_claim(store)
    if lose is None:
        hand_back(store, found)
        claim(store)
    else:
        recover(store, judge=unstarted)
    before = tables.everything()

    answers = store.apply(
        [
            SetProgress(found.run_id, 1, 0.5, "late"),
            AddLogs(found.run_id, 1, ((0, "info", "late"),)),
        ]
    )

    assert answers == [False, False]
    assert tables.everything() == before


def test_progress_and_log_lines_are_refused_after_the_end_of_the_attempt(store, worker, tables):
    found = enqueue_and_claim(store)
    succeed(store, found)
    before = tables.everything()

    answers = store.apply(
        [
            SetProgress(found.run_id, 1, 0.5, "late"),
            AddLogs(found.run_id, 1, ((0, "info", "late"),)),
        ]
    )

    assert answers == [False, False]
    assert tables.everything() == before


def test_the_last_log_lines_of_an_attempt_may_be_written_with_its_end(store, worker, clock):
    found = enqueue_and_claim(store)
    words = AddLogs(found.run_id, 1, ((clock.now(), "info", "done"),))

    answers = store.apply([success(found), words])

    assert answers == [Settled.DONE, True]
    assert [line.message for line in store.list_logs(found.run_id, 10)] == ["done"]


def test_a_batch_of_states_may_be_large(store, worker):
    ids = enqueue_many(store, 1000)

    assert len(store.get_states(ids)) == 1000


def test_the_oldest_ready_run_of_a_queue_is_found_although_others_are_claimed_before_it(
    store, worker, clock
):
    starved = enqueue_one(store, queue="mail", priority=-5)
    clock.advance(1)
    for priority in (3, 0, 3):
        enqueue_one(store, queue="mail", priority=priority)
    other = enqueue_one(store, queue="reports", lane="~task key 0")
    enqueue_one(store, queue="stopped")
    pause(store, "stopped")

    oldest = store.list_oldest_ready()

    assert [(run.queue, run.run_id) for run in oldest] == [("mail", starved), ("reports", other)]
    assert [run.due_at for run in oldest] == [run_of(store, run.run_id).due_at for run in oldest]


def test_there_is_no_oldest_run_if_no_run_is_ready(store, worker):
    enqueue_one(store, delay_seconds=60)

    assert store.list_oldest_ready() == []


def test_running_runs_are_found_after_any_number_of_newer_runs(store, worker):
    claims = [enqueue_and_claim(store) for _ in range(2)]
    running = [claim.run_id for claim in claims]
    for _ in range(30):
        enqueue_one(store)
    which = RunFilter(states=("running",), scan=10)

    found = [run.id for run in store.list_runs(which)]
    first = [run.id for run in store.list_runs(which._replace(limit=1))]
    rest = [run.id for run in store.list_runs(which._replace(before=first[0]))]

    assert found == first + rest == sorted(running, reverse=True)
    assert store.reach_of(which) is None
    assert store.list_runs(which._replace(task="another")) == []
    assert store.list_runs(which._replace(queue="another")) == []
    assert store.list_runs(which._replace(since=store.now() + SECOND)) == []
