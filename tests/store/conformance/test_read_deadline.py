"""Who asks may say how long reads may take; the store gives up what takes longer."""

from contextlib import closing

import pytest

from duly.clock import monotonic
from duly.errors import ReadTooSlow
from duly.store.read_deadline import limit_read_time
from duly.store.store_factory import open_store
from tests.store.conformance.slow import mend_acts, slow_down_acts
from tests.store.conformance.verbs import UNKNOWN_RUN, enqueue_one

pytestmark = pytest.mark.pgbouncer


@pytest.fixture
def store(store_url):
    """A store of its own for every test, since these change the tables themselves."""
    with closing(open_store(store_url)) as store:
        yield store


def test_a_read_that_takes_too_long_is_given_up(store, store_url):
    run_id = enqueue_one(store)
    slow_down_acts(store_url)
    began = monotonic()

    with limit_read_time(0.2), pytest.raises(ReadTooSlow, match="narrow the request"):
        store.list_audit_entries(None, 10)

    assert monotonic() - began < 20
    assert store.get_run(run_id) is not None, "others go on reading"
    mend_acts(store_url)
    assert store.list_audit_entries(None, 10) == [], "without a bound, too"


def test_reads_of_a_block_have_one_bound_together(store):
    with limit_read_time(0.05):
        with pytest.raises(ReadTooSlow):
            read_for_ever(store)
        with limit_read_time(60), pytest.raises(ReadTooSlow):
            store.get_run(UNKNOWN_RUN)

    assert store.get_run(UNKNOWN_RUN) is None


def read_for_ever(store):
    while True:
        store.get_run(UNKNOWN_RUN)


def test_reads_within_their_bound_answer_as_ever(store):
    run_id = enqueue_one(store)

    with limit_read_time(60):
        run = store.get_run(run_id)
        missing = store.get_run(UNKNOWN_RUN)

    assert run == store.get_run(run_id)
    assert missing is None
