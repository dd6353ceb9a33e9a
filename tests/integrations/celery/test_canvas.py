"""Guarded tasks as parts of Celery's chains, groups and chords."""

import celery
import pytest

pytestmark = [pytest.mark.process, pytest.mark.stores("sqlite")]
# The conformance suite and test_kills.py cover the behaviour that depends on the ledger.

WAIT = 30


def test_chains_groups_and_chords_continue_with_the_result_of_each_task(shop):
    shop.worker("--pool", "threads", "--concurrency", "4")
    tasks = shop.tasks
    twice = [
        celery.chord([tasks.moody.s(1), tasks.moody.s(2), tasks.moody.s(1)], tasks.add.s(more=n))
        for n in (10, 20)
    ]
    chain = celery.chain(tasks.moody.si(2), celery.group(tasks.charge.si(7), tasks.charge.si(7)))

    results = [chord.apply_async() for chord in twice]
    links = chain.apply_async()

    assert [result.get(WAIT) for result in results] == [14, 24]
    assert links.get(WAIT) == [{"order": 7, "currency": "EUR"}] * 2
    assert sorted(subject for subject, _ in shop.notes("calmed")) == ["1", "2"]
    assert sorted(subject for subject, _ in shop.notes("added")) == ["10", "20"]
    assert shop.count("charged") == 1
    assert shop.guard.letters.list() == []
