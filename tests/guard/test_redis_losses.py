"""What a Redis can lose or refuse, and that a guard says so; see docs/how-to/guard_on_redis.md."""

from contextlib import closing
from importlib import util

import pytest
import redis

from duly import Duly
from duly.errors import BadOption, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable
from duly.guard import Guard
from duly.guard.ledgers import open_ledger
from duly.guard.redis import RedisLedger, translate_error
from duly.store.guard_ops import FinishKey, RenewKey
from tests.guard.verbs import LEASE, TTL, acquire, letter

SECRET = "s3cr:t/w@rd"  # noqa: S105 - made up


class TestLosing:
    """What a Redis can lose; docs/how-to/guard_on_redis.md says so."""

    @pytest.mark.process
    def test_a_guard_whose_redis_is_away_runs_no_body(self, private_redis):
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("before"):
                pass
            private_redis.kill9()
            bodies = []

            for key in ("before", "new"):
                with pytest.raises(StoreUnavailable, match="cannot be reached"), guard.once(key):
                    bodies.append(key)

        with (
            closing(Guard(private_redis.url())) as guard,
            pytest.raises(StoreUnavailable),
            guard.once("new"),
        ):
            bodies.append("new")
        assert bodies == []

    @pytest.mark.process
    def test_a_result_is_there_again_after_a_crash_with_a_log(self, private_redis):
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("k") as claim:
                claim.done("kept")

            private_redis.kill9()
            private_redis.start()

            with guard.once("k") as claim:
                assert (claim.first, claim.result) == (False, "kept")

    @pytest.mark.process
    def test_one_that_is_held_is_finished_when_redis_comes_back(self, private_redis):
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("k") as claim:
                private_redis.kill9()
                private_redis.start()
                claim.done("late")

            assert guard.look("k").state == "done"

    @pytest.mark.process
    def test_without_a_log_a_crash_loses_keys(self, private_redis):
        private_redis.kill9()
        private_redis.settings["appendonly"] = "no"
        private_redis.start()
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("k"):
                pass

            private_redis.kill9()
            private_redis.start()

            with guard.once("k") as claim:
                assert claim.first

    def test_a_flush_loses_keys_but_fences_grow(self, private_redis):
        with closing(RedisLedger(private_redis.url())) as ledger:
            taken = acquire(ledger)
            private_redis.call("FLUSHALL")

            again = acquire(ledger, "b")

            assert again.is_ours
            assert again.fence > taken.fence
            assert ledger.apply([FinishKey("/k", "a", taken.fence, TTL)]) == [False]


class TestFailures:
    """What goes wrong has duly's names."""

    def test_a_full_redis_takes_no_new_key_but_lets_holders_finish(self, private_redis):
        with closing(RedisLedger(private_redis.url())) as ledger:
            taken = acquire(ledger)
            private_redis.call("CONFIG", "SET", "maxmemory", "1")

            with pytest.raises(StoreFull, match="is full"):
                acquire(ledger, key="/another")
            with pytest.raises(StoreFull):
                ledger.apply([letter("1")])

            assert ledger.apply([RenewKey("/k", "a", taken.fence, LEASE)]) == [True]
            assert ledger.apply([FinishKey("/k", "a", taken.fence, TTL, '"ok"')]) == [True]
            assert ledger.get_key("/k").result == '"ok"'

    def test_a_replica_cannot_be_written(self, private_redis):
        with closing(RedisLedger(private_redis.url())) as ledger:
            acquire(ledger)
            private_redis.call("REPLICAOF", "127.0.0.1", "1")

            with pytest.raises(StoreReadOnly, match="primary"):
                acquire(ledger, key="/another")

    @pytest.mark.parametrize(
        ("words", "kind"),
        [
            ("LOADING Redis is loading the dataset in memory", StoreUnavailable),
            ("BUSY Redis is busy running a script.", StoreUnavailable),
            ("NOREPLICAS Not enough good replicas to write.", StoreUnavailable),
            ("MISCONF Redis is configured to save RDB snapshots", StoreReadOnly),
            ("ERR Error running script: @user_script: 3: -READONLY You can't", StoreReadOnly),
            ("ERR Error running script: @user_script: 3: -OOM command not", StoreFull),
            ("NOPERM this user has no permissions", StoreRefused),
        ],
    )
    def test_what_the_server_says_decides(self, words, kind):
        assert type(translate_error(redis.ResponseError(words), "redis://", words)) is kind

    def test_a_wrong_password_is_refused_and_shown_nowhere(self, private_redis):
        private_redis.call("CONFIG", "SET", "requirepass", "another")
        url = f"redis://:{SECRET.replace('/', '%2F').replace('@', '%40')}@127.0.0.1"

        with pytest.raises(StoreRefused) as raised:
            RedisLedger(f"{url}:{private_redis.port}/0")

        assert "check the user, the password" in str(raised.value)
        assert "w@rd" not in repr(raised.value)

    def test_an_address_that_cannot_be_read_is_not_repeated(self):
        with pytest.raises(StoreRefused) as raised:
            RedisLedger(f"redis://:{SECRET}@127.0.0.1:0/0")

        assert "s3cr" not in str(raised.value)
        assert raised.value.__suppress_context__

    def test_a_store_of_runs_cannot_be_a_redis(self):
        with pytest.raises(StoreRefused, match="no runs"), closing(Duly("redis://h/0")) as app:
            app.task(print, name="print").enqueue("never")

    def test_without_the_driver_it_is_said_what_to_install(self, monkeypatch, redis_url):
        monkeypatch.setattr(util, "find_spec", {"redis": None}.__getitem__)

        with pytest.raises(StoreRefused, match=r"duly\[redis\]"):
            open_ledger(redis_url)


class TestNotices:
    """What people should know before they rely on a Redis."""

    def test_one_that_keeps_all_has_none(self, ledger):
        assert ledger.notices == []

    @pytest.mark.parametrize(
        ("setting", "value", "words"),
        [
            ("maxmemory-policy", "allkeys-lru", "maxmemory-policy allkeys-lru"),
            ("appendonly", "no", "set appendonly yes"),
        ],
    )
    def test_one_that_may_forget_has_one(self, private_redis, setting, value, words):
        private_redis.call("CONFIG", "SET", setting, value)

        with closing(RedisLedger(private_redis.url())) as ledger:
            (notice,) = ledger.notices

        assert words in notice

    def test_a_guard_that_refuses_eviction_does_not_use_one_that_evicts(self, private_redis):
        private_redis.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        guard = Guard(private_redis.url(), on_eviction="refuse")

        with closing(guard), pytest.raises(StoreRefused, match="maxmemory-policy volatile-ttl"):
            guard.look("k")

    def test_a_guard_knows_two_answers_to_eviction(self):
        with pytest.raises(BadOption, match="on_eviction"):
            Guard("redis://h", on_eviction="ignore")

    def test_guards_say_once_in_a_process_what_their_ledger_may_forget(self, private_redis, caplog):
        private_redis.call("CONFIG", "SET", "appendonly", "no")

        for namespace in ("eu", "us"):
            with closing(Guard(private_redis.url(), namespace=namespace)) as guard:
                guard.look("k")

        (line,) = caplog.records
        assert (line.name, line.levelname) == ("duly", "WARNING")
        assert "set appendonly yes" in line.message

    def test_one_that_may_not_be_asked_has_none(self, private_redis):
        private_redis.call("CONFIG", "SET", "appendonly", "no")
        private_redis.call("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "-info", "-config")

        url = f"redis://ann:pw@127.0.0.1:{private_redis.port}/0"
        with closing(RedisLedger(url)) as ledger:
            assert ledger.notices == []
            assert acquire(ledger).is_ours


def test_a_redis_of_the_tests_starts_again_at_its_address(private_redis):
    private_redis.call("SET", "kept", "1")

    private_redis.kill9()
    private_redis.start()

    assert private_redis.call("GET", "kept") == "1"
