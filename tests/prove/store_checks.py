"""The tests of the store that must fail with a mutant of the store, each as a function of a URL.

They are the tests of the suite themselves, on a store that is opened here: opened by a fixture, it
would be there before the mutant.
"""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import pytest

from duly.store.postgres import floors, reconnecting_connection
from duly.store.store_factory import open_store
from tests.servers.cutting_proxy import UNANSWERED, CuttingProxy, cut_everywhere, proxy_before
from tests.store.conformance import (
    test_apply,
    test_floors,
    test_hints,
    test_reschedule,
    test_reschedule_races,
    test_steps,
)
from tests.store.conformance.stores import ServerClock, opened_tables
from tests.store.conformance.verbs import (
    WORKER,
    enqueue_and_claim,
    enqueue_and_succeed,
    register,
)
from tests.store.postgres import test_admission, test_losses

Check = Callable[[str], None]


@contextmanager
def opened(url: str) -> Iterator[Any]:
    """Open a store with a live worker."""
    with closing(open_store(url)) as store:
        register(store)
        yield store


def check_fences_of_steps(url: str) -> None:
    with opened(url) as store:
        test_steps.test_a_lost_claim_records_nothing(
            store, enqueue_and_claim(store), test_steps.end
        )


def check_reschedules(url: str) -> None:
    with opened(url) as store, closing(open_store(url)) as other, opened_tables(url) as tables:
        if store.has_one_writer:
            test_reschedule.test_a_run_that_is_not_queued_stays_as_it_is(
                store, WORKER, tables, test_reschedule.running, "running", "it is running"
            )
            return
        with pytest.MonkeyPatch.context() as patch:
            test_reschedule_races.test_a_run_that_changes_under_a_reschedule_is_read_again(
                store, lambda: other, WORKER, patch, test_reschedule_races.claimed_meanwhile
            )


def check_order_of_logs(url: str) -> None:
    with opened(url) as store:
        test_apply.test_log_lines_and_progress_are_written_before_the_end_of_their_attempt(
            store, WORKER
        )


def check_order_of_claims(url: str) -> None:
    with opened(url) as store:
        test_apply.test_a_claim_sees_the_place_that_a_settle_of_the_same_call_frees(store, WORKER)


def check_hints(options: dict[str, Any], url: str) -> None:
    with opened(url) as store, closing(open_store(url)) as reader:
        test_hints.test_a_hint_about_a_run_follows_the_commit_of_the_run(
            store, lambda: reader, options
        )


@contextmanager
def cut_off(url: str) -> Iterator[tuple[Any, Any, CuttingProxy]]:
    """Open a store whose connections a proxy can cut, and the same store past the proxy."""
    with (
        pytest.MonkeyPatch.context() as patch,
        proxy_before(url) as (proxy, through),
        test_losses.opened_through(through) as store,
        closing(open_store(url)) as reader,
    ):
        patch.setattr(reconnecting_connection, "OLD_SESSION_SECONDS", 30.0)
        yield store, reader, proxy


def check_loss_of_settles(url: str) -> None:
    with cut_off(url) as (store, reader, proxy):
        test_losses.test_a_settle_is_written_once(
            store, reader, partial(cut_everywhere, proxy, UNANSWERED)
        )


def check_loss_of_logs(url: str) -> None:
    with cut_off(url) as (store, reader, proxy):
        test_losses.test_log_lines_are_written_once_if_the_answer_to_their_commit_is_lost(
            store, reader, proxy
        )


def check_loss_of_an_enqueue(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch, cut_off(url) as (store, reader, proxy):
        test_losses.test_a_run_that_ended_before_the_reply_to_its_enqueue_is_not_accepted_again(
            store, reader, proxy, patch
        )


def check_admission(of: str, url: str) -> None:
    with opened(url) as store:
        test_admission.test_a_claim_under_a_limit_counts_what_an_open_claim_has_taken(
            store, url, of
        )


def check_floors(url: str) -> None:
    with (
        pytest.MonkeyPatch.context() as patch,
        opened(url) as store,
        closing(ServerClock(url)) as clock,
        opened_tables(url) as tables,
    ):
        patch.setattr(floors, "SLOW_SECONDS", -1.0)
        enqueue_and_succeed(store)

        def look() -> bool:
            clock.advance(test_floors.LONG)
            return store._here().floors.look(0.0)

        test_floors.test_a_run_that_becomes_ready_below_a_floor_is_found_by_the_next_look(
            test_floors.Here(store, clock, tables), look, test_floors.by_hand_back
        )


STORE_ZOO: dict[str, dict[str, Check]] = {
    "ends_steps_without_a_fence": {"steps": check_fences_of_steps},
    "reschedules_without_a_fence": {"reschedules": check_reschedules},
    "settles_before_it_logs": {"logs": check_order_of_logs},
    "claims_before_it_settles": {"claims": check_order_of_claims},
    "hints_before_it_commits": {
        "plain": partial(check_hints, {}),
        "keyed": partial(check_hints, {"key": "k"}),
    },
    "repeats_lost_commits": {
        "enqueue": check_loss_of_an_enqueue,
        "settle": check_loss_of_settles,
        "logs": check_loss_of_logs,
    },
    "admits_without_a_lock": {
        "queue": partial(check_admission, "queue"),
        "task": partial(check_admission, "task"),
    },
    "never_lowers_floors": {"floors": check_floors},
}
"""By mutant: the checks that must fail. Each of them alone detects the mutant."""
