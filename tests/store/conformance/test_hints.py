"""Hints that a store sends about its own writes."""

import threading

import pytest

from tests.store.conformance.verbs import order


@pytest.mark.parametrize("options", [{}, {"key": "k"}], ids=["plain", "keyed"])
def test_a_hint_about_a_run_follows_the_commit_of_the_run(store, open_another, options):
    # Hints of other processes would arrive in other threads, at any time.
    reader, writing, found = open_another(), threading.get_ident(), []
    op = order(**options)

    def look(*_):
        if threading.get_ident() == writing:
            found.append(reader.get_run(op.run_id) is not None)

    end = store.listen(look, look)
    store.do(op)
    end()

    assert found
    assert all(found)
