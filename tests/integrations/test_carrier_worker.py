"""How a process of another engine treats the messages that it receives."""

import logging
import threading
from contextlib import closing
from types import SimpleNamespace

import celery
import pytest
import redis
import rq

from duly import BadOption, Duly
from duly.extend import CarrierWorker
from duly.integrations.celery import CeleryCarrier
from duly.integrations.rq import RQCarrier
from duly.store.ops.carriers import HandedOver
from duly.worker.services.relay import Relay
from tests.store.conformance.verbs import at_once

pytestmark = pytest.mark.stores("sqlite")
WAIT = 20


class Fleet:
    """Another engine, in this process."""

    def __init__(self):
        self.carrying = CarrierWorker(lease=3.0, beat=1.0)

    def attach(self, app):
        self.carrying.attach(app)

    def send(self, messages):
        pass


@pytest.fixture
def fleet():
    """Yield an engine that ends with the test."""
    fleet = Fleet()
    yield fleet
    fleet.carrying.stop()


@pytest.fixture
def app(store_url):
    """Yield an application on a fresh store."""
    with closing(Duly(store_url)) as app:
        yield app


def test_the_engine_decides_how_many_runs_execute_at_once(app, fleet):
    together = threading.Barrier(3)

    @app.task(name="meet", carrier=fleet)
    def meet() -> None:
        together.wait(WAIT)

    runs = [meet.enqueue() for _ in range(3)]
    fleet.carrying.start(concurrency=3)
    brought = at_once(*(lambda r=run: fleet.carrying.run(r.id, 0, meet.name) for run in runs))

    assert brought == [True] * 3
    assert {run.refresh().state for run in runs} == {"succeeded"}


def test_an_unknown_task_is_not_claimed_and_the_log_names_the_remedy(app, fleet, caplog):
    @app.task(name="known", carrier=fleet)
    def known() -> None: ...

    with caplog.at_level(logging.WARNING, logger="duly"):
        assert not fleet.carrying.run("a-run", 0, "shop:unknown")

    (line,) = caplog.messages
    assert "a-run" in line
    assert "shop:unknown" in line
    assert "import the module" in line
    assert app.workers.list() == [], "no worker was started for the unknown task"


def test_a_run_is_handed_over_by_the_resend_policy_of_its_carrier(app):
    engine = celery.Celery("engine", set_as_current=False)
    asked = []
    carriers = [
        CeleryCarrier(engine, first_resend_after=30, max_sends=2),
        RQCarrier(
            rq.Queue("q", connection=redis.Redis()),
            app="shop:app",
            first_resend_after=30,
            max_sends=2,
        ),
    ]
    for number, carrier in enumerate(carriers):
        app.task(carrier=carrier, name=f"pay-{number}")(lambda: None)
    store = SimpleNamespace(do=lambda op: asked.append(op) or HandedOver([], []))

    Relay(store, app.registry, app.bus).tick()

    (hand_over,) = asked
    assert set(hand_over.tasks) == {"pay-0", "pay-1"}
    assert (hand_over.stale, hand_over.most) == (30_000_000, 2)


@pytest.mark.parametrize("wrong", [{"first_resend_after": 0}, {"max_sends": 1}, {"max_sends": 2.5}])
def test_an_impossible_resend_policy_of_a_carrier_is_refused(wrong):
    with pytest.raises(BadOption, match=next(iter(wrong))):
        RQCarrier(rq.Queue("q", connection=redis.Redis()), app="shop:app", **wrong)


@pytest.mark.parametrize(
    ("pool", "limit", "told"), [("solo", 1, [1]), ("thread", 7, [7]), ("prefork", 4, [])]
)
def test_the_celery_pool_sets_the_concurrency_of_a_process(monkeypatch, pool, limit, told):
    engine = celery.Celery("engine", set_as_current=False)
    carrier = CeleryCarrier(engine)
    begun = []
    said = SimpleNamespace(start=lambda *, concurrency: begun.append(concurrency))
    monkeypatch.setattr(carrier, "_carrying", said)
    running = type("TaskPool", (), {"limit": limit, "__module__": f"celery.concurrency.{pool}"})

    carrier._on_worker_ready(SimpleNamespace(app=engine, pool=running()))

    assert begun == told, "a process of a pool is recognized"
