"""A transaction has a bounded size in bytes, however large the payloads are."""

import pytest

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.states import State
from duly.core.verdict import Finish
from duly.limits import CLAIM_BATCH, PAYLOAD_BYTES, RESULT_BYTES, TRANSACTION_BYTES
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.upkeep import Prune
from tests.store.conformance.verbs import (
    HOUR_SECONDS,
    LANE,
    SECOND,
    TASK,
    TASKS,
    WORKER,
    claim,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    pause,
    settle,
    settle_op,
    tick,
)

FRAME = '[["{}"],{{}}]'
LARGEST = FRAME.format("x" * (PAYLOAD_BYTES - len(FRAME.format(""))))
RUNS = 200
LARGE_RESULT = '"' + "x" * RESULT_BYTES + '"'


def bytes_of(claims) -> int:
    return sum(len(found.arguments.encode()) for found in claims)


def test_a_claim_ends_at_a_number_of_bytes_and_the_next_claims_return_the_rest(store, worker):
    run_ids = [
        run_id for _ in range(RUNS // 25) for run_id in enqueue_many(store, 25, arguments=LARGEST)
    ]

    answers = []
    while claims := claim(store, CLAIM_BATCH):
        answers.append(claims)

    assert max(map(bytes_of, answers)) <= TRANSACTION_BYTES + PAYLOAD_BYTES
    assert [found.run_id for claims in answers for found in claims] == run_ids
    assert [claims.is_cut for claims in answers] == [True] * (len(answers) - 1) + [False]


def test_characters_of_several_bytes_count_as_several_bytes(store, worker):
    enqueue_many(store, 40, arguments=FRAME.format("𝄞" * (PAYLOAD_BYTES // 4 - 10)))

    claims = claim(store, CLAIM_BATCH)

    assert claims.is_cut
    assert bytes_of(claims) <= TRANSACTION_BYTES + PAYLOAD_BYTES


def test_a_claim_of_small_arguments_is_not_cut(store, worker):
    enqueue_many(store, CLAIM_BATCH, arguments=FRAME.format("x" * 1000))

    claims = claim(store, CLAIM_BATCH)

    assert len(claims) == CLAIM_BATCH
    assert not claims.is_cut


def test_a_lane_of_large_arguments_does_not_starve_the_others(store, worker):
    enqueue_many(store, 40, arguments=LARGEST, lane="loop")
    other = enqueue_one(store, lane=LANE)
    wants = (Want(None, "loop", CLAIM_BATCH), Want(None, LANE, CLAIM_BATCH))

    claims = store.do(ClaimRuns(WORKER, wants, TASKS))

    assert other in [found.run_id for found in claims]
    assert bytes_of(claims) <= TRANSACTION_BYTES + 2 * PAYLOAD_BYTES


def test_a_claim_of_many_queues_ends_at_about_a_number_of_bytes(store, worker):
    for number in range(50):
        enqueue_one(store, arguments=LARGEST, queue=f"queue {number}")

    answers = []
    while claims := claim(store, CLAIM_BATCH):
        answers.append(claims)

    assert sum(map(len, answers)) == 50
    assert max(map(bytes_of, answers)) <= 2 * TRANSACTION_BYTES + PAYLOAD_BYTES


@pytest.mark.parametrize("first", [True, False])
def test_runs_under_a_limit_are_claimed_up_to_a_number_of_bytes(store, worker, first):
    enqueue_many(store, 40, arguments=LARGEST, lane=limited_lane(LANE, TASK))
    enqueue_many(store, 10, arguments=LARGEST)
    wants = (Want(None, LANE, CLAIM_BATCH),)
    limits = ClaimLimits({TASK: 1000}, is_first=first)

    answers = []
    while True:
        claims = store.do(ClaimRuns(WORKER, wants, TASKS, limits=limits))
        if not claims:
            break
        answers.append(claims)

    assert sum(map(len, answers)) == 50
    assert max(map(bytes_of, answers)) <= 2 * TRANSACTION_BYTES + PAYLOAD_BYTES
    assert all(claims.is_cut for claims in answers[:-1])


def test_a_prune_ends_at_a_number_of_bytes_and_reports_that_there_is_more(store, worker, clock):
    for number in range(20):
        found = enqueue_and_claim(store, arguments=FRAME.format(number))
        settle(store, settle_op(found, "returned", Finish(State.SUCCEEDED, None, LARGE_RESULT)))
    clock.advance(2 * HOUR_SECONDS)
    prune = Prune(round(HOUR_SECONDS * SECOND), limit=1000)

    first = store.do(prune)
    rest = [store.do(prune) for _ in range(2)]

    assert first.runs == TRANSACTION_BYTES // RESULT_BYTES
    assert first.most == prune.limit
    assert first.runs + sum(pruned.runs for pruned in rest) == 20
    assert rest[-1].most < prune.limit


MOST_LARGE = -(-TRANSACTION_BYTES // PAYLOAD_BYTES)
"""The number of runs with the largest arguments that reach the bound."""
TICKS = 20


def enqueue_large(store, count, **options):
    for _ in range(count // 25):
        enqueue_many(store, 25, arguments=LARGEST, **options)


def ticks_until_done(store):
    """Tick as workers do until nothing is left; return the answers."""
    answers = []
    for _ in range(TICKS):
        answers.append(tick(store))
        next_due_in = answers[-1].next_due_in
        if not answers[-1].has_more and (next_due_in is None or next_due_in > 0):
            return answers
    raise AssertionError("it does not end")


def test_a_tick_promotes_up_to_a_number_of_bytes(store, worker, clock):
    enqueue_large(store, 100, delay_seconds=10)
    clock.advance(11)

    promoted = [ticked.promoted for ticked in ticks_until_done(store)]

    assert max(promoted) == MOST_LARGE
    assert sum(promoted) == 100


def test_a_tick_parks_up_to_a_number_of_bytes(store, worker):
    for queue in ("one", "two"):
        enqueue_large(store, 50, queue=queue)
        pause(store, queue)

    parked = [ticked.parked for ticked in ticks_until_done(store)]

    assert max(parked) == MOST_LARGE
    assert sum(parked) == 100


def test_a_tick_expires_up_to_a_number_of_bytes(store, worker, clock):
    enqueue_large(store, 50, expires_seconds=5)
    enqueue_large(store, 50, expires_seconds=5, delay_seconds=100)
    clock.advance(6)

    expired = [ticked.expired for ticked in ticks_until_done(store)]

    assert max(expired) == MOST_LARGE
    assert sum(expired) == 100
