"""The guard on a real Redis runs a body once, uses the clock of Redis and hides secrets."""

import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from duly.clock import MICROSECONDS
from duly.errors import StoreUnavailable
from duly.guard import Guard
from duly.guard.redis import RedisLedger
from duly.store.ops.guard import FailKey, FinishKey, ForgetKey, RenewKey
from duly.store.reads import DeadLetterFilter
from tests.guard.verbs import LEASE, TTL, acquire, put_dead_letter
from tests.servers.processes import wait_until


def only_key(client: Any) -> str:
    (name,) = client.scan_iter("duly:{guard}:key:*")
    return name


class TestRunningOnce:
    """A guard works on a Redis as it does on a store."""

    def test_a_body_runs_once_and_later_callers_get_its_result(self, guard):
        @guard.idempotent(name="charge")
        def charge(order: int) -> dict[str, int]:
            bodies.append(order)
            return {"order": order}

        bodies: list[int] = []

        assert [charge(1), charge(order=1), charge(2)] == [{"order": 1}, {"order": 1}, {"order": 2}]
        assert bodies == [1, 2]
        assert charge.reset(1)
        charge(1)
        assert bodies == [1, 2, 1]

    @pytest.mark.process
    def test_one_of_eight_processes_runs_the_body(self, redis_url):
        # Fork the processes so that the slow imports happen once.
        program = (
            "import multiprocessing, sys\n"
            "import redis\n"
            "from duly.guard import Guard\n"
            "fork = multiprocessing.get_context('fork')\n"
            "all_are_ready = fork.Barrier(8)\n"
            "def race():\n"
            "    guard = Guard(sys.argv[1])\n"
            "    all_are_ready.wait(40)\n"
            "    with guard.once('race', wait=20) as claim:\n"
            "        sys.stdout.write('first\\n' if claim.first else 'later\\n')\n"
            "        if claim.first:\n"
            "            claim.done(42)\n"
            "        assert claim.result == 42\n"
            "racers = [fork.Process(target=race) for _ in range(8)]\n"
            "for racer in racers:\n"
            "    racer.start()\n"
            "for racer in racers:\n"
            "    racer.join()\n"
            "sys.exit(any(racer.exitcode for racer in racers))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, redis_url],
            stdout=subprocess.PIPE,
            text=True,
            timeout=80,
            check=False,
        )
        said = done.stdout.split()

        assert done.returncode == 0
        assert sorted(said) == ["first"] + ["later"] * 7

    def test_a_write_with_the_wrong_owner_or_fence_is_refused(self, ledger):
        taken = acquire(ledger)

        for owner, fence in (("a", taken.fence - 1), ("b", taken.fence)):
            for op in (
                RenewKey("/k", owner, fence, LEASE),
                FinishKey("/k", owner, fence, TTL),
                FailKey("/k", owner, fence, TTL),
            ):
                assert ledger.apply([op]) == [False]

        assert ledger.get_key("/k").state == "held"

    @pytest.mark.process
    def test_a_forked_child_uses_a_connection_of_its_own(self, ledger):
        taken = acquire(ledger)

        child = os.fork()
        if child == 0:
            answers = {acquire(ledger, f"child {number}").fence for number in range(200)}
            os._exit(0 if answers == {taken.fence} else 1)
        answers = {acquire(ledger, f"parent {number}").fence for number in range(200)}

        assert os.waitpid(child, 0)[1] == 0
        assert answers == {taken.fence}

    def test_a_script_that_redis_has_forgotten_is_sent_again(self, ledger, client):
        taken = acquire(ledger)
        renew = RenewKey("/k", "a", taken.fence, LEASE)

        client.script_flush()
        assert ledger.apply([renew]) == [True]
        client.script_flush()
        assert ledger.apply([renew, renew]) == [True, True]

    def test_an_address_may_name_a_socket(self, private_redis):
        with closing(Guard(f"unix://{private_redis.socket}?db=1")) as guard:
            with guard.once("k") as claim:
                claim.done("by socket")

            assert guard.look("k").result == '"by socket"'
            assert private_redis.call("DBSIZE", database=1) == 2


class TestTime:
    """The expiry of keys in Redis."""

    def test_a_result_expires_in_redis_after_its_ttl(self, ledger, client):
        taken = acquire(ledger)
        ledger.do(FinishKey("/k", "a", taken.fence, TTL, '"ok"'))

        assert 3_590_000 < client.pttl(only_key(client)) <= 3_600_000

    def test_a_key_that_is_kept_forever_has_no_expiry(self, ledger, client):
        taken = acquire(ledger, ttl=None)
        assert client.pttl(only_key(client)) == -1

        ledger.do(RenewKey("/k", "a", taken.fence, LEASE))
        ledger.do(FinishKey("/k", "a", taken.fence, None))

        assert client.pttl(only_key(client)) == -1

    def test_a_held_key_outlives_its_lease_even_with_a_short_ttl(self, ledger, client):
        taken = acquire(ledger, ttl=1)
        at_first = client.pttl(only_key(client))
        client.pexpire(only_key(client), 1_000)

        ledger.do(RenewKey("/k", "a", taken.fence, LEASE))

        assert at_first > 86_400_000
        assert client.pttl(only_key(client)) > 86_400_000

    def test_a_result_with_a_short_ttl_is_deleted(self, ledger, client):
        taken = acquire(ledger)
        ledger.do(FinishKey("/k", "a", taken.fence, 20_000))

        wait_until(
            lambda: not list(client.scan_iter("duly:{guard}:key:*")),
            seconds=5,
            what="the key has expired",
        )
        assert acquire(ledger, "b").attempts == 1

    def test_leases_are_measured_with_the_clock_of_redis(self, ledger, client):
        acquire(ledger)
        seconds, microseconds = client.time()

        found = ledger.get_key("/k")

        now = seconds * MICROSECONDS + microseconds
        assert now - 5 * MICROSECONDS < found.began_at <= now
        assert LEASE - 5 * MICROSECONDS < found.left <= LEASE


class TestSecrets:
    """Passwords and payloads are not shown."""

    def test_a_ledger_shows_no_password(self, private_redis):
        private_redis.call("CONFIG", "SET", "requirepass", "hunter2")

        with closing(RedisLedger(f"redis://:hunter2@127.0.0.1:{private_redis.port}/0")) as ledger:
            acquire(ledger)
            private_redis.kill9()
            with pytest.raises(StoreUnavailable) as raised:
                acquire(ledger)

        assert "hunter2" not in f"{ledger!r} {ledger.shown_url} {raised.value!r}"

    def test_the_names_in_redis_contain_no_text_of_a_user(self, guard, client):
        with guard.once("invoice:Ann:42", payload={"card": "4111-2222"}) as claim:
            claim.done()
        guard.ledger.do(put_dead_letter("message-of-ann", task="shop.charge"))

        names = list(client.scan_iter())

        assert len(names) == 5
        for name in names:
            assert name.startswith("duly:{guard}:")
            assert not any(text in name for text in ("invoice", "Ann", "ann", "shop", "4111-2222"))
        key = client.hgetall(only_key(client))
        assert not any("4111-2222" in value or "invoice" in value for value in key.values())

    def test_a_guard_works_with_only_the_documented_redis_permissions(self, private_redis):
        page = Path(__file__).parents[2] / "docs" / "how-to" / "guard_on_redis.md"
        (command,) = re.findall(r"`(ACL SETUSER .*)`", page.read_text())
        private_redis.call(*command.replace("…", "pw").split())

        with closing(Guard(f"redis://guard:pw@127.0.0.1:{private_redis.port}/0")) as guard:
            with guard.once("k") as claim:
                claim.done(1)
            assert guard.ledger.apply([put_dead_letter("1")]) == [True]
            assert len(guard.ledger.list_dead_letters(DeadLetterFilter())) == 1
            assert guard.reset("k")


class TestDeadLetters:
    """Behaviour of dead letters that is specific to Redis."""

    def test_a_list_of_dead_letters_longer_than_a_page_is_read_completely(self, ledger):
        ledger.apply([put_dead_letter(f"{number:04}", engine="rq") for number in range(450)])
        ledger.do(put_dead_letter("0001x"))

        assert [
            found.id for found in ledger.list_dead_letters(DeadLetterFilter(engine="celery"))
        ] == ["0001x"]
        assert len(ledger.list_dead_letters(DeadLetterFilter(limit=1_000))) == 451

    def test_an_expired_dead_letter_is_not_listed(self, ledger, client):
        ledger.apply([put_dead_letter("1", ttl=20_000), put_dead_letter("2")])

        wait_until(
            lambda: [found.id for found in ledger.list_dead_letters(DeadLetterFilter())] == ["2"],
            seconds=5,
            what="the first dead letter has expired",
        )
        ledger.do(put_dead_letter("3"))
        assert client.zcard("duly:{guard}:letters") == 2

    def test_forgetting_several_keys_returns_a_result_for_each(self, ledger):
        taken = acquire(ledger)
        ledger.do(FinishKey("/k", "a", taken.fence, TTL))
        acquire(ledger, key="/held")

        ops = [ForgetKey("/k"), ForgetKey("/held"), ForgetKey("/none")]

        assert ledger.apply(ops) == [True, None, False]
