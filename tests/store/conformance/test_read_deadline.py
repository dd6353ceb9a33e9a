"""A caller can bound the time of reads. The store gives up a read that takes longer."""

from contextlib import closing

import pytest

from duly.clock import monotonic
from duly.errors import ReadTooSlow
from duly.store.read_deadline import limit_read_time
from duly.store.store_factory import open_store
from tests.store.conformance.slow import restore_acts, slow_down_acts
from tests.store.conformance.verbs import UNKNOWN_RUN, enqueue_one

pytestmark = pytest.mark.pgbouncer


@pytest.fixture
def store(store_url):
    """A new store for every test, because these tests change the tables themselves."""
    with closing(open_store(store_url)) as store:
        yield store


def test_a_read_that_takes_too_long_is_given_up(store, store_url):
    run_id = enqueue_one(store)
    slow_down_acts(store_url)
    began = monotonic()

    with limit_read_time(0.2), pytest.raises(ReadTooSlow, match="narrow the request"):
        store.list_audit_entries(None, 10)

    assert monotonic() - began < 20
    assert store.get_run(run_id) is not None, "reads of other tables still work"
    restore_acts(store_url)
    assert store.list_audit_entries(None, 10) == [], "a read without a bound works too"


def test_the_reads_of_a_block_share_one_bound(store):
    with limit_read_time(0.05):
        with pytest.raises(ReadTooSlow):
            read_for_ever(store)
        with limit_read_time(60), pytest.raises(ReadTooSlow):
            store.get_run(UNKNOWN_RUN)

    assert store.get_run(UNKNOWN_RUN) is None


def read_for_ever(store):
    while True:
        store.get_run(UNKNOWN_RUN)


def test_a_bound_does_not_change_the_result_of_a_fast_read(store):
    run_id = enqueue_one(store)

    with limit_read_time(60):
        run = store.get_run(run_id)
        missing = store.get_run(UNKNOWN_RUN)

    assert run == store.get_run(run_id)
    assert missing is None
