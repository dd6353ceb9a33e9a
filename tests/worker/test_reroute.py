"""A task gains or loses its carrier between two deployments, and nobody does anything about it."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace

import pytest

from duly import Duly
from duly.carrier import ResendPolicy
from duly.store.ops.carriers import RerouteRuns
from duly.worker.services import maintenance
from duly.worker.services.maintenance import Promoter
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface

WAIT = 20


class Fleet:
    """Another engine, as far as we see it."""

    resend_policy = ResendPolicy()

    def __init__(self):
        self.sent = []

    def attach(self, app):
        pass

    def send(self, messages):
        self.sent += messages

    def got(self, run):
        """Say whether a message about a run was sent."""
        return run.id in {message.run_id for message in self.sent}


@pytest.fixture
def deploy(store_url) -> Iterator:
    """Deploys the application once more, on the same store."""
    with ExitStack() as stack:

        def deploy_one(carrier=None):
            app = stack.enter_context(closing(Duly(store_url)))

            @app.task(name="pay", carrier=carrier)
            def pay() -> str:
                return "paid"

            @app.task(name="ours")
            def ours() -> None: ...

            return SimpleNamespace(app=app, pay=pay, ours=ours)

        yield deploy_one


def test_runs_of_a_task_that_lost_its_carrier_are_run_by_our_workers(deploy):
    fleet = Fleet()
    before = deploy(fleet)
    handed = before.pay.enqueue()
    with before.app.worker():
        wait_until(
            lambda: fleet.got(handed), seconds=WAIT, what="the run is waiting to be sent there"
        )
    runs = [handed, before.pay.enqueue()]
    after = deploy()

    with after.app.worker() as worker:
        assert [run.result(timeout=WAIT) for run in runs] == ["paid"] * 2
        assert not worker.carry(handed.id, 0), "the message comes too late"

    assert {run.refresh().record.claim_number for run in runs} == {1}


def test_draining_runs_them_too(deploy):
    run = deploy(Fleet()).pay.enqueue()

    deploy().app.worker().drain(timeout=WAIT)

    assert run.refresh().state == "succeeded"


@pytest.mark.parametrize("carries", [False, True], ids=["worker-of-ours", "worker-of-the-engine"])
def test_runs_of_a_task_that_gained_a_carrier_are_handed_over(deploy, carries):
    before = deploy()
    runs = [before.pay.enqueue() for _ in range(2)]
    fleet = Fleet()

    with deploy(fleet).app.worker(carries=carries) as worker:
        wait_until(lambda: all(map(fleet.got, runs)), seconds=WAIT, what="they are handed over")
        assert {run.refresh().state for run in runs} == {"queued"}, "we do not run them"
        if carries:
            assert all(worker.carry(message.run_id, 0) for message in fleet.sent)

    assert {run.refresh().state for run in runs} == {"succeeded" if carries else "queued"}


def test_what_the_engines_workers_cannot_run_is_parked_and_not_in_the_way(deploy, monkeypatch):
    monkeypatch.setattr(maintenance, "TICK_BATCH", 2)
    before, fleet = deploy(), Fleet()
    ours = [before.ours.enqueue() for _ in range(5)]
    run = before.pay.enqueue()

    def reasons():
        return {run.refresh().record.parked for run in ours}

    with deploy(fleet).app.worker(carries=True):
        wait_until(lambda: fleet.got(run), seconds=WAIT, what="the run is waiting to be sent there")
        wait_until(lambda: reasons() == {"unregistered"}, seconds=WAIT, what="they are parked")


def test_old_and_new_workers_side_by_side_run_what_each_was_given(deploy):
    fleet = Fleet()
    old, new = deploy(), deploy(fleet)

    with new.app.worker(), old.app.worker():
        assert old.pay.enqueue().result(timeout=WAIT) == "paid"
        run = new.pay.enqueue()
        wait_until(lambda: fleet.got(run), seconds=WAIT, what="the run is waiting to be sent there")

    assert run.refresh().record.lane == "handed"


class Looked:
    """A promoter over a real store, and what it asked that to write."""

    def __init__(self, deployed, *, found_nothing=False):
        self.written = []
        store = deployed.app.store

        def do(op):
            self.written.append(op)
            return store.do(op)

        watched = SimpleNamespace(peek=store.peek, do=do, hears_hints=lambda: True)
        claimer = SimpleNamespace(found_nothing=found_nothing)
        nothing = lambda: None  # noqa: E731
        self.promoter = Promoter(
            watched, deployed.app.registry, claimer, SimpleNamespace(), nothing, nothing
        )

    def relaned(self):
        """Look once more; say whether that wrote anything but upkeep."""
        self.written.clear()
        self.promoter.tick()
        return any(isinstance(op, RerouteRuns) for op in self.written)


def test_what_is_not_to_be_handed_over_now_is_parked_lest_it_is_asked_for_again_and_again(deploy):
    deployed = deploy(Fleet())
    run = deployed.pay.enqueue()
    deployed.app.queues.pause("default")

    Looked(deployed).promoter.tick()

    assert run.refresh().record.parked == "paused"
    assert not deployed.app.store.peek(("pay",)).carried


def test_it_costs_nothing_where_no_run_can_have_strayed(deploy):
    carried, ours = deploy(Fleet()), deploy()
    everybody = [Looked(carried), Looked(ours)]
    assert [looked.relaned() for looked in everybody] == [False, False]
    carried.pay.enqueue()

    assert not Looked(carried).relaned(), "it hands over all tasks that there are"


def test_where_some_may_have_it_is_looked_at_every_few_seconds(deploy, passing):
    time = passing(maintenance)
    deploy(Fleet()).pay.enqueue()
    looked = Looked(deploy())

    assert [looked.relaned(), looked.relaned()] == [True, False]
    time.advance(5)
    assert looked.relaned()
