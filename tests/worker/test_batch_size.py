"""How many rows the batches of a service have."""

from contextlib import closing

import psycopg
import pytest

from duly.settings import WorkerSettings
from duly.store.group_commit import OpCutOff
from duly.store.store_factory import open_store
from duly.worker.services import batch_size
from duly.worker.services.batch_size import BatchSize
from duly.worker.services.pruner import Pruner
from tests.store.conformance.verbs import enqueue_and_succeed, listed_ids, register

FIXED_SECONDS = 0.1
"""What a round trip and a commit take here, however small the batch is."""


@pytest.mark.parametrize(("row_seconds", "expected"), [(0.001, 20), (0.0001, 200), (0.00001, 1000)])
def test_a_batch_grows_until_its_rows_take_twenty_milliseconds(passing, row_seconds, expected):
    time = passing(batch_size)
    size = BatchSize(1000)

    for _ in range(100):
        size.write(
            lambda limit: time.advance(FIXED_SECONDS + limit * row_seconds) or limit,
            lambda *_: True,
        )

    assert expected <= size.limit <= 2 * expected


def test_a_batch_that_was_cut_off_is_followed_by_a_smaller_one_at_once():
    size = BatchSize(1000)
    limits = []

    def write(limit: int) -> int:
        limits.append(limit)
        if limit > 3:
            raise OpCutOff("too slow")
        return limit

    assert size.write(write, lambda found, limit: found >= limit) == (1, True)
    assert limits == [20, 5, 1]


@pytest.mark.stores("postgres")
def test_slow_rows_are_pruned_in_batches_that_are_not_cut_off(store_url):
    settings = WorkerSettings(retention=0.0, dead_retention=0.0)
    with psycopg.connect(store_url) as connection, closing(open_store(store_url)) as store:
        register(store)
        for _ in range(12):
            enqueue_and_succeed(store)
        connection.execute(
            "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$"
            " BEGIN PERFORM pg_sleep(0.15); RETURN old; END $$"
        )
        connection.execute(
            "CREATE TRIGGER slow BEFORE DELETE ON duly_history"
            " FOR EACH ROW EXECUTE FUNCTION sleep()"
        )
        connection.commit()
        pruner = Pruner(store, settings)

        left = [len(listed_ids(store))]
        while left[-1]:
            pruner.tick()
            left.append(len(listed_ids(store)))

    assert left == list(range(12, -1, -1))
