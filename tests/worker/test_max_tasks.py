"""Workers that end after so many tasks: never more of them begin, and all that began end."""

import pytest

from duly.worker.task_budget import TaskBudget
from tests.worker.trees import Tree

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("shop")]


@pytest.mark.parametrize("processes", [1, 3])
def test_workers_begin_as_many_tasks_as_they_may_and_end(
    shop, notes, store_url, tmp_path, processes
):
    notes.open_gate()
    runs = [shop.linger.enqueue(*notes.arguments(number)) for number in range(10)]
    runs += [shop.linger_async.enqueue(*notes.arguments(number)) for number in range(10, 20)]

    with Tree(store_url, tmp_path, processes=processes, max_tasks=7) as tree:
        assert tree.ended(40) == 0, tree.log.read_text()

    states = sorted(run.refresh().state for run in runs)
    assert states == ["queued"] * 13 + ["succeeded"] * 7
    assert len(notes.starts()) == len(notes.ends()) == 7
    # What could not begin was not even claimed.
    assert sum(run.record.claim_number for run in runs) == 7


def test_a_process_that_was_killed_leaves_the_rest_to_its_successor(
    shop, notes, store_url, tmp_path
):
    runs = [shop.linger.enqueue(*notes.arguments(number)) for number in range(5)]

    with Tree(store_url, tmp_path, concurrency=1, max_tasks=3) as tree:
        (first,) = notes.wait_for_starts(1)
        tree.kill(first.pid)
        notes.open_gate()

        assert tree.ended(40) == 0, tree.log.read_text()

    assert (len(notes.starts()), len(notes.ends())) == (3, 2)
    assert sum(run.refresh().record.claim_number for run in runs) == 3
    assert sorted(run.state for run in runs) == ["queued"] * 3 + ["succeeded"] * 2


def test_workers_that_drain_end_when_nothing_is_left(shop, notes, store_url, tmp_path):
    notes.open_gate()
    run = shop.linger.enqueue(*notes.arguments(1))

    with Tree(store_url, tmp_path, drain=True, max_tasks=7) as tree:
        assert tree.ended(40) == 0, tree.log.read_text()

    assert run.refresh().state == "succeeded"


@pytest.mark.parametrize(
    ("most", "processes", "shares"),
    [(1, 1, [1]), (5, 1, [4]), (7, 3, [2, 2, 2]), (3, 3, [1, 1, 1])],
)
def test_a_task_is_kept_for_a_run_that_must_run_alone(most, processes, shares):
    budget = TaskBudget(most)

    assert [budget.share(missing) for missing in budget.missing(processes)] == shares
    assert budget.is_spent is (sum(shares) == most)
