"""The claims in hand: room for more, and marks that stay until an end is durable."""

import threading

import pytest

from duly import Retry
from duly.limits import TRANSACTION_BYTES
from duly.worker import inflight as hand_module
from duly.worker.inflight import LOOP, THREAD, InFlightClaims
from duly.worker.start_marks import StartMarks
from tests.worker.claims import claim, definition

BATCH = 100


@pytest.fixture
def time(passing):
    """Time that passes when a test says so."""
    return passing(hand_module)


@pytest.fixture
def slots(tmp_path, time):
    """Marks for 300 bodies, and a lease that lasts."""
    slots = StartMarks(tmp_path / "w.slots", create=300)
    slots.deadline = time.now + 1000
    yield slots
    slots.close()


@pytest.fixture
def hand(slots) -> InFlightClaims:
    """A hand with 4 threads and 20 coroutines."""
    return InFlightClaims(slots, {LOOP: 20, THREAD: 4}, BATCH)


def take(hand: InFlightClaims, count: int, *, loop: bool = False, **fields):
    """Take claims into the hand."""
    task = definition(loop=loop)
    return hand.take((claim(**fields), task) for _ in range(count))


def run_through(hand: InFlightClaims, seconds: float, *, count: int = 1) -> None:
    """Take bodies through their whole life, each that long."""
    for _ in range(count):
        (one,) = take(hand, 1)
        assert hand.begin(one)
        hand.end(one, seconds)
        hand.release([one])


def test_an_empty_hand_has_room_for_every_slot(hand):
    assert (hand.room(THREAD, ahead=False), hand.room(LOOP, ahead=False)) == (4, 20)
    assert hand.is_empty()


def test_claims_take_room_of_their_kind_alone(hand):
    take(hand, 3)

    assert (hand.room(THREAD, ahead=False), hand.room(LOOP, ahead=False)) == (1, 20)
    assert len(hand) == 3


def test_a_full_hand_has_no_room(hand):
    take(hand, 4)

    assert hand.room(THREAD, ahead=False) == 0


def test_an_ended_body_frees_its_slot_before_its_end_is_durable(hand):
    taken = take(hand, 4)
    hand.begin(taken[0])

    hand.end(taken[0], 1.0)

    assert hand.room(THREAD, ahead=False) == 1
    assert not hand.is_empty()


def test_nothing_is_claimed_ahead_behind_long_bodies(hand):
    run_through(hand, 2.0, count=5)

    assert hand.room(THREAD, ahead=True) == 4


def test_short_bodies_allow_claiming_ahead(hand):
    run_through(hand, 0.0001, count=100)

    assert hand.room(THREAD, ahead=True) > 20
    assert hand.room(THREAD, ahead=False) == 4
    assert hand.room(LOOP, ahead=True) <= 21


def test_claiming_ahead_is_bounded_by_a_batch(hand):
    run_through(hand, 0.0, count=500)

    assert hand.room(THREAD, ahead=True) == 4 + BATCH


def test_the_arguments_of_a_replaced_claim_are_not_counted_for_ever(hand):
    run_through(hand, 0.0, count=500)
    large = {"run_id": "run", "arguments": "x" * TRANSACTION_BYTES}
    (first,) = take(hand, 1, **large)
    (second,) = take(hand, 1, **large)

    hand.release([first])
    hand.release([second])

    assert hand.room(THREAD, ahead=True) > 4


def test_bodies_that_become_long_end_claiming_ahead(hand):
    run_through(hand, 0.0, count=500)

    run_through(hand, 5.0, count=20)

    assert hand.room(THREAD, ahead=True) == 4


def test_slots_whose_bodies_run_for_long_are_not_claimed_ahead_for(hand, time):
    run_through(hand, 0.0049, count=200)
    before = hand.room(THREAD, ahead=True)

    rooms = []
    for _ in range(4):
        (held,) = take(hand, 1)
        assert hand.begin(held)
        time.advance(1)
        rooms.append(hand.room(THREAD, ahead=True))

    # Of 4 slots with room for 10 ahead each, one more is lost with each long body.
    assert before == 44
    assert rooms == [33, 22, 11, 0]


def test_bodies_that_have_ended_are_not_long_ones(hand, time):
    run_through(hand, 0.0049, count=200)
    for held in take(hand, 4):
        assert hand.begin(held)
        hand.end(held, 0.005)
    time.advance(1)

    assert hand.room(THREAD, ahead=True) == 44


def test_nothing_is_claimed_ahead_after_claims_went_stale(hand, time):
    run_through(hand, 0.0, count=500)
    take(hand, 1)
    time.advance(1)

    (stale,) = hand.withdraw_stale(claimed_before=time.now - 0.5)
    hand.release([stale])
    after = hand.room(THREAD, ahead=True)
    run_through(hand, 0.0, count=100)

    assert after == 4
    assert hand.room(THREAD, ahead=True) == 4 + BATCH


def test_long_bodies_do_not_keep_free_slots_from_being_filled(slots, time):
    hand = InFlightClaims(slots, {LOOP: 100, THREAD: 4}, BATCH)
    for held in take(hand, 90, loop=True):
        assert hand.begin(held)
    time.advance(60)

    assert hand.room(LOOP, ahead=True) == 10


def test_there_is_no_room_beyond_the_marks(hand):
    run_through(hand, 0.0, count=500)
    unsettled = take(hand, 290)
    for held in unsettled:
        assert hand.begin(held)
        hand.end(held, 0.0)

    # Their ends are not durable yet, so 290 of the 300 marks are still in use.
    assert hand.room(THREAD, ahead=False) <= 10
    assert hand.room(THREAD, ahead=True) <= 10


def test_a_start_is_marked_before_the_body_begins(hand, slots, time):
    (held,) = hand.take([(claim(claim_number=5), definition(timeout=30))])
    assert list(slots.marks()) == []

    assert hand.begin(held)

    (mark,) = slots.marks()
    assert (mark.run_id, mark.claim_number) == (held.claim.run_id, 5)
    assert (mark.overdue_at, mark.retry_after) == (time.now + 30, -1.0)


def test_a_mark_says_what_a_timeout_would_mean(hand, slots):
    policy = definition(timeout=5, retries=Retry(2, base=8, factor=2, jitter=False))
    first, last = hand.take(
        [(claim(retries_used=1), policy), (claim(retries_used=2), policy)],
    )
    hand.begin(first)
    hand.begin(last)

    assert sorted(mark.retry_after for mark in slots.marks()) == [-1.0, 16.0]


def test_a_mark_stays_until_the_end_is_durable(hand, slots):
    (held,) = take(hand, 1)
    hand.begin(held)

    hand.end(held, 1.0)
    assert [mark.ended for mark in slots.marks()] == [True]
    hand.release([held])

    assert list(slots.marks()) == []
    assert hand.is_empty()


def test_releasing_twice_gives_its_mark_back_once(hand, slots):
    first, second = take(hand, 2)
    hand.begin(first)
    hand.end(first, 0.0)

    hand.release([first])
    hand.release([first])
    hand.begin(second)
    (third,) = take(hand, 1)
    hand.begin(third)

    assert {mark.run_id for mark in slots.marks()} == {
        second.claim.run_id,
        third.claim.run_id,
    }


def test_nothing_starts_once_the_lease_is_over(hand, slots, time):
    (held,) = take(hand, 1)
    slots.deadline = time.now

    assert not hand.begin(held)
    assert list(slots.marks()) == []


def test_who_froze_while_marking_a_start_does_not_start(hand, slots, time, monkeypatch):
    (held,) = take(hand, 1)
    mark = slots.start

    def mark_and_freeze(*arguments: object) -> None:
        mark(*arguments)
        time.advance(5000)

    monkeypatch.setattr(slots, "start", mark_and_freeze)

    assert not hand.begin(held)
    assert list(slots.marks()) == []
    slots.deadline = time.now + 10_000
    assert hand.begin(held)
    assert [mark.run_id for mark in slots.marks()] == [held.claim.run_id]


def test_nothing_starts_once_the_worker_stops(hand, slots):
    (held,) = take(hand, 1)
    hand.accepting = False

    assert not hand.begin(held)
    assert list(slots.marks()) == []


def test_what_was_withdrawn_does_not_start(hand):
    started, waiting = take(hand, 2)
    hand.begin(started)

    withdrawn = hand.withdraw(lambda _held: True)

    assert withdrawn == [waiting]
    assert not hand.begin(waiting)
    assert hand.room(THREAD, ahead=False) == 3


def test_what_was_withdrawn_is_ours_until_that_is_recorded(hand):
    (waiting,) = take(hand, 1)

    hand.withdraw(lambda _held: True)
    before = hand.run_ids(), hand.has_released_all()
    hand.release([waiting])

    assert before == ({waiting.claim.run_id}, False)
    assert (hand.run_ids(), hand.has_released_all()) == (frozenset(), True)


def test_a_run_that_was_handed_back_and_claimed_again_starts_once(hand, slots):
    (before,) = take(hand, 1)
    hand.withdraw(lambda _held: True)
    task = definition()
    (after,) = hand.take([(before.claim._replace(claim_number=2), task)])

    assert not hand.begin(before)
    assert hand.begin(after)
    assert [mark.claim_number for mark in slots.marks()] == [2]


def test_claims_are_counted_by_queue(hand):
    take(hand, 2, queue="mail")
    take(hand, 1, loop=True, queue="mail")
    take(hand, 1)

    assert (hand.count_in_queue("mail"), hand.count_in_queue("default")) == (3, 1)


def test_many_threads_share_the_hand_without_losing_a_mark(hand, slots):
    def live() -> None:
        for _ in range(200):
            (held,) = take(hand, 1)
            assert hand.begin(held)
            hand.end(held, 0.0)
            hand.release([held])

    threads = [threading.Thread(target=live) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert hand.is_empty()
    assert list(slots.marks()) == []
    everything = take(hand, 300)
    assert all(hand.begin(held) for held in everything)
    assert len(set(slots.marks())) == 300
