"""Losses and errors of a Redis, and the guard's reaction; see docs/how-to/guard_on_redis.md."""

from contextlib import closing
from importlib import util

import pytest
import redis

from duly import Duly
from duly.errors import BadOption, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable
from duly.guard import Guard
from duly.guard.ledgers import open_ledger
from duly.guard.redis import RedisLedger, translate_error
from duly.store.ops.guard import FinishKey, RenewKey
from tests.guard.verbs import LEASE, TTL, acquire, put_dead_letter

SECRET = "s3cr:t/w@rd"  # noqa: S105 - made up


class TestLosing:
    """The losses that docs/how-to/guard_on_redis.md describes."""

    @pytest.mark.process
    def test_a_guard_runs_no_body_while_redis_is_unavailable(self, private_redis):
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
    def test_a_result_survives_a_crash_of_a_redis_with_an_append_only_file(self, private_redis):
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("k") as claim:
                claim.done("kept")

            private_redis.kill9()
            private_redis.start()

            with guard.once("k") as claim:
                assert (claim.first, claim.result) == (False, "kept")

    @pytest.mark.process
    def test_a_held_key_can_be_finished_after_a_restart_of_redis(self, private_redis):
        with closing(Guard(private_redis.url())) as guard:
            with guard.once("k") as claim:
                private_redis.kill9()
                private_redis.start()
                claim.done("late")

            assert guard.look("k").state == "done"

    @pytest.mark.process
    def test_a_crash_of_a_redis_without_an_append_only_file_loses_keys(self, private_redis):
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
    """Errors of Redis become errors of duly."""

    def test_a_full_redis_refuses_new_keys_but_lets_holders_finish(self, private_redis):
        with closing(RedisLedger(private_redis.url())) as ledger:
            taken = acquire(ledger)
            private_redis.call("CONFIG", "SET", "maxmemory", "1")

            with pytest.raises(StoreFull, match="is full"):
                acquire(ledger, key="/another")
            with pytest.raises(StoreFull):
                ledger.do(put_dead_letter("1"))

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
    def test_the_message_of_the_server_determines_the_error(self, words, kind):
        assert type(translate_error(redis.ResponseError(words), "redis://", words)) is kind

    def test_a_wrong_password_is_refused_and_not_shown(self, private_redis):
        private_redis.call("CONFIG", "SET", "requirepass", "another")
        url = f"redis://:{SECRET.replace('/', '%2F').replace('@', '%40')}@127.0.0.1"

        with pytest.raises(StoreRefused) as raised:
            RedisLedger(f"{url}:{private_redis.port}/0")

        assert "check the user, the password" in str(raised.value)
        assert "w@rd" not in repr(raised.value)

    def test_the_error_for_an_address_that_cannot_be_parsed_hides_the_address(self):
        with pytest.raises(StoreRefused) as raised:
            RedisLedger(f"redis://:{SECRET}@127.0.0.1:0/0")

        assert "s3cr" not in str(raised.value)
        assert raised.value.__suppress_context__

    def test_a_redis_cannot_be_a_store_of_runs(self):
        with pytest.raises(StoreRefused, match="no runs"), closing(Duly("redis://h/0")) as app:
            app.task(print, name="print").enqueue("never")

    def test_the_error_for_a_missing_driver_names_the_extra_to_install(
        self, monkeypatch, redis_url
    ):
        monkeypatch.setattr(util, "find_spec", {"redis": None}.__getitem__)

        with pytest.raises(StoreRefused, match=r"duly\[redis\]"):
            open_ledger(redis_url)


class TestNotices:
    """Notices about a Redis that may lose keys."""

    def test_a_ledger_on_a_safe_redis_has_no_notices(self, ledger):
        assert ledger.notices == []

    @pytest.mark.parametrize(
        ("setting", "value", "words"),
        [
            ("maxmemory-policy", "allkeys-lru", "maxmemory-policy allkeys-lru"),
            ("appendonly", "no", "set appendonly yes"),
        ],
    )
    def test_a_ledger_on_a_redis_that_may_lose_keys_has_a_notice(
        self, private_redis, setting, value, words
    ):
        private_redis.call("CONFIG", "SET", setting, value)

        with closing(RedisLedger(private_redis.url())) as ledger:
            (notice,) = ledger.notices

        assert words in notice

    def test_a_guard_that_refuses_eviction_refuses_a_redis_that_evicts(self, private_redis):
        private_redis.call("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
        guard = Guard(private_redis.url(), on_eviction="refuse")

        with closing(guard), pytest.raises(StoreRefused, match="maxmemory-policy volatile-ttl"):
            guard.look("k")

    def test_an_unknown_value_of_on_eviction_is_refused(self):
        with pytest.raises(BadOption, match="on_eviction"):
            Guard("redis://h", on_eviction="ignore")

    def test_the_guards_of_a_process_log_the_notices_of_their_ledger_once(
        self, private_redis, caplog
    ):
        private_redis.call("CONFIG", "SET", "appendonly", "no")

        for namespace in ("eu", "us"):
            with closing(Guard(private_redis.url(), namespace=namespace)) as guard:
                guard.look("k")

        (line,) = caplog.records
        assert (line.name, line.levelname) == ("duly", "WARNING")
        assert "set appendonly yes" in line.message

    def test_a_ledger_without_permission_to_read_the_configuration_has_no_notices(
        self, private_redis
    ):
        private_redis.call("CONFIG", "SET", "appendonly", "no")
        private_redis.call("ACL", "SETUSER", "ann", "on", ">pw", "~*", "+@all", "-info", "-config")

        url = f"redis://ann:pw@127.0.0.1:{private_redis.port}/0"
        with closing(RedisLedger(url)) as ledger:
            assert ledger.notices == []
            assert acquire(ledger).is_ours


def test_a_redis_of_the_tests_restarts_at_the_same_address(private_redis):
    private_redis.call("SET", "kept", "1")

    private_redis.kill9()
    private_redis.start()

    assert private_redis.call("GET", "kept") == "1"
