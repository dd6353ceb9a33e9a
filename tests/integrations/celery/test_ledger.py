"""A Celery application that names no ledger keeps its keys in its broker's Redis, or is refused."""

import logging
import os
import subprocess
import sys
from contextlib import closing

import celery
import pytest

from duly.errors import StoreRefused
from duly.guard import Guard
from duly.integrations.celery import Celery, IdempotentTask, LedgerNotConfigured, guard_of
from tests.integrations.celery.workers import CeleryWorker
from tests.integrations.fleet import ROOT

WAIT = 30
APPLICATION = "tests.integrations.celery.imported"
AT_NO_TIME = 20


@pytest.fixture(autouse=True)
def _without_a_ledger(monkeypatch):
    """Clear the environment so that only the broker is configured."""
    monkeypatch.delenv("DULY_URL", raising=False)
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)


@pytest.fixture
def environment(tmp_path, redis_url):
    """Return the settings of the application, for a worker that is started in any folder."""
    return {
        "IMPORTED_BROKER": redis_url,
        "IMPORTED_NOTES": str(tmp_path / "notes"),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }


def start_in(folder, environment):
    """Start a worker that must end by itself. Return its exit code and its output."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "celery", "-A", APPLICATION, "worker", "--pool", "solo"]
    ended = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=AT_NO_TIME,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.process
def test_two_workers_in_two_folders_run_each_payload_once(tmp_path, environment):
    broker = environment["IMPORTED_BROKER"]
    sender = celery.Celery("imported", broker=broker, backend=broker)
    workers = []
    for queue in ("one", "two"):
        (tmp_path / queue).mkdir()
        workers.append(
            CeleryWorker(
                tmp_path,
                environment,
                *("-Q", queue, "--concurrency", "1"),
                application=APPLICATION,
                folder=tmp_path / queue,
            )
        )

    with workers[0], workers[1], closing(sender):
        sent = [
            sender.send_task(f"{APPLICATION}.charge", (order,), queue=queue)
            for order in (1, 2, 3)
            for queue in ("one", "two")
        ]
        results = [result.get(WAIT) for result in sent]
        logs = [worker.log.read_text() for worker in workers]

    assert results == [1, 1, 2, 2, 3, 3]
    assert sorted((tmp_path / "notes").read_text().split()) == ["1", "2", "3"]
    assert [list((tmp_path / queue).iterdir()) for queue in ("one", "two")] == [[], []]
    assert [log.count("keeps the keys of its tasks in its broker") for log in logs] == [1, 1]


@pytest.mark.process
def test_a_worker_whose_broker_keeps_no_keys_does_not_start(tmp_path, environment):
    code, written = start_in(tmp_path / "one", environment | {"IMPORTED_BROKER": "memory://"})

    assert code == 1
    assert (
        "has no ledger for the keys of its tasks: its broker is memory, which cannot store keys"
        in written
    )
    assert "Traceback" not in written
    assert list((tmp_path / "one").iterdir()) == []


@pytest.mark.process
def test_a_worker_whose_broker_evicts_keys_does_not_start(tmp_path, environment, private_redis):
    private_redis.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")

    code, written = start_in(
        tmp_path / "one", environment | {"IMPORTED_BROKER": private_redis.url()}
    )

    assert code == 1
    assert "maxmemory-policy volatile-lru" in written


@pytest.mark.parametrize("make", [Celery, celery.Celery])
@pytest.mark.parametrize(
    ("broker", "why"),
    [
        (None, "amqp"),
        ("amqp://guest@localhost//", "amqp"),
        ("sqs://", "sqs"),
        ("memory://", "memory"),
        ("filesystem://", "filesystem"),
        ("sentinel://localhost:26379", "sentinel"),
        ("redis://one;redis://two", "several brokers"),
        (["redis://one", "redis://two"], "several brokers"),
    ],
)
def test_a_broker_that_cannot_be_the_ledger_is_refused(make, broker, why):
    app = make("refused", broker=broker)

    @app.task(base=IdempotentTask)
    def add(a, b):
        return a + b

    with pytest.raises(LedgerNotConfigured, match=why) as refused:
        add.apply((1, 2), throw=True)

    assert "DULY_URL" in str(refused.value)


def test_brokers_that_differ_for_reading_and_writing_are_refused(redis_url):
    app = Celery("refused", broker=redis_url)
    app.conf.broker_write_url = "redis://elsewhere"

    with pytest.raises(LedgerNotConfigured, match="several brokers"):
        guard_of(app)


def test_tls_settings_outside_the_broker_address_are_refused():
    app = Celery("refused", broker="rediss://localhost")
    app.conf.broker_use_ssl = {"ssl_ca_certs": "/ca.pem"}

    with pytest.raises(LedgerNotConfigured, match="broker_use_ssl"):
        guard_of(app)


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis://:secret@h:6380/3", "redis://:secret@h:6380/3"),
        ("redis://h/1?visibility_timeout=5", "redis://h/1"),
        (
            "rediss://h/0?ssl_cert_reqs=CERT_REQUIRED&ssl_ca_certs=%2Fca.pem",
            "rediss://h/0?ssl_cert_reqs=required&ssl_ca_certs=%2Fca.pem",
        ),
        ("redis+socket:///run/redis.sock?virtual_host=2", "unix:///run/redis.sock?db=2"),
        ("redis+socket://:pw@/run/other.sock", "unix://:pw@/run/other.sock"),
        ("unix:///run/third.sock?db=1", "unix:///run/third.sock?db=1"),
    ],
)
def test_the_address_of_a_redis_that_is_a_broker_names_the_ledger(broker, url, caplog):
    app = Celery("named", broker=broker)

    with caplog.at_level(logging.WARNING, "duly"):
        assert guard_of(app).url == url
        guard_of(app)

    assert len(caplog.records) == 1
    assert "secret" not in caplog.text


def test_a_broker_over_a_socket_is_the_ledger(private_redis):
    app = Celery("socket", broker=f"redis+socket://{private_redis.socket}?virtual_host=1")

    with closing(guard_of(app)) as guard:
        assert guard.look("none") is None


def test_the_global_key_prefix_of_the_broker_is_the_namespace_of_the_guard(redis_url):
    app = Celery("prefixed", broker=redis_url)
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}

    assert guard_of(app).namespace == "shop:"


@pytest.mark.parametrize("policy", ["volatile-lru", "allkeys-lru", "volatile-ttl"])
def test_a_broker_that_evicts_keys_is_refused_as_a_ledger(private_redis, policy):
    private_redis.call("CONFIG", "SET", "maxmemory-policy", policy)
    app = Celery("evicting", broker=private_redis.url())

    with closing(guard_of(app)) as guard, pytest.raises(StoreRefused, match=policy):
        guard.look("none")


def test_a_broker_that_does_not_report_its_eviction_policy_is_refused_as_a_ledger(private_redis):
    private_redis.call("ACL", "SETUSER", "shy", "on", ">secret", "~*", "+@all", "-info")
    app = Celery("shy", broker=private_redis.url().replace("//", "//shy:secret@"))

    with closing(guard_of(app)) as guard, pytest.raises(StoreRefused, match="does not report"):
        guard.look("none")


@pytest.mark.parametrize("source", ["guard", "duly_guard_database", "DULY_URL"])
def test_a_ledger_that_is_configured_is_used_whatever_the_broker(
    source, tmp_path, monkeypatch, caplog
):
    url = f"sqlite:///{tmp_path / 'keys.db'}"
    app = Celery("named", broker="memory://", guard=Guard(url) if source == "guard" else None)
    if source == "duly_guard_database":
        app.conf.duly_guard_database = url
    elif source == "DULY_URL":
        monkeypatch.setenv("DULY_URL", url)

    assert guard_of(app).url == url
    assert caplog.records == []
