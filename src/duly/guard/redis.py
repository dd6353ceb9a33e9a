"""Keys and dead letters of a guard in Redis. Every op is one atomic Lua script.

All names in Redis share one hash tag, and therefore one slot. So a script may use several of them,
in particular the counter of fences, even through a proxy that distributes keys.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import redis
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry

from duly.clock import MICROSECONDS
from duly.core.addresses import ConnectionSecrets, shown_address
from duly.core.record import DeadLetterGroup
from duly.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable
from duly.limits import FORGET_BATCH, PAGE, REDIS_GRACE_SECONDS, REDIS_SECONDS
from duly.store.ops.guard import (
    AcquireKey,
    DeadLetterRecord,
    EndDeadLetter,
    FailKey,
    FinishKey,
    ForgetKey,
    Guarded,
    GuardedKey,
    PutDeadLetter,
    RenewKey,
)
from duly.store.ops.op import A, AnyOp, Op, OpWriter
from duly.store.reads import DeadLetterFilter

_NAMES = "duly:{guard}"
_FENCE = f"{_NAMES}:fence"
_LETTERS = f"{_NAMES}:letters"
_LETTER_ENDS = f"{_NAMES}:letter-ends"
_ROOM = round(REDIS_GRACE_SECONDS * MICROSECONDS)
_LETTER_TEXTS = (
    "engine", "task", "arguments", "key", "cause", "error", "traceback", "attempts", "queue",
    "options", "namespace", "application", "fingerprint",
)  # fmt: skip

Call = tuple[str, list[str], list[str | int]]
"""A script by name, its keys, and its arguments."""


class RedisLedger(OpWriter):
    """A Redis that stores keys. If it is unreachable, calls raise: no body runs without it."""

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], int] | None = None,
        on_eviction: Literal["warn", "refuse"] = "warn",
    ) -> None:
        """Open the Redis at an address. `clock` replaces Redis's own time in tests."""
        self.shown_url = shown_address(url)
        self.notices: list[str] = []
        self._clock = clock
        options = _options(url, self.shown_url)
        self._secrets = ConnectionSecrets(options)
        self._client = redis.Redis(connection_pool=redis.ConnectionPool(**options))
        begin = _script("record")
        self._scripts = {
            name: self._client.register_script(begin + _script(name))
            for name in (
                "acquire",
                "renew",
                "finish",
                "forget",
                "look",
                "put_dead_letter",
                "end_dead_letter",
            )
        }
        try:
            self._look_for_risks(on_eviction)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<ledger at {self.shown_url}>"

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, each atomically, and return their answers, in order."""
        calls = [_call(op) for op in ops]
        with self._failures():
            answers = [self._run(calls[0])] if len(calls) == 1 else self._run_all(calls)
        return [_answer(op, answer) for op, answer in zip(ops, answers, strict=True)]

    def get_key(self, key: str) -> GuardedKey | None:
        """Return the state of a key."""
        with self._failures():
            found = self._run(("look", [_name("key", key)], []))
        if found is None:
            return None
        state, holder, fence, attempts, losses, left, began_at, ended_at, kept_until, *what = found
        return GuardedKey(
            key, state, holder, int(fence), int(attempts), int(losses), left, int(began_at),
            _number(ended_at), _number(kept_until), *what,
        )  # fmt: skip

    def list_dead_letters(self, which: DeadLetterFilter) -> list[DeadLetterRecord]:
        """Return the matching dead letters, newest first. They may change while pages are read."""
        found: list[DeadLetterRecord] = []
        with self._failures():
            for ids in self._letter_ids(which):
                found += [letter for letter in self._letters(ids) if _fits(letter, which)]
                if len(found) >= which.limit:
                    break
        return found[: which.limit]

    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]:
        """Return dead letters grouped by engine, task and fingerprint, the largest group first."""
        groups: dict[tuple[str, ...], DeadLetterGroup] = {}
        with self._failures():
            for ids in self._letter_ids(which):
                for letter in self._letters(ids):
                    if _fits(letter, which):
                        place = (letter.engine, letter.task, letter.fingerprint)
                        groups[place] = _add_to_group(groups.get(place), letter)
        largest = sorted(groups.values(), key=lambda group: (-group.count, group.task))
        return largest[: which.limit]

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
        self._client.connection_pool.disconnect()

    # -- calling --

    def _run(self, call: Call) -> Any:  # noqa: ANN401 - what the script returns
        name, keys, arguments = call
        return self._scripts[name](keys=keys, args=[self._now(), *arguments])

    def _run_all(self, calls: list[Call]) -> list[Any]:
        """Send many calls at once. Each is independent of the others."""
        pipeline = self._client.pipeline(transaction=False)
        for name, keys, arguments in calls:
            self._scripts[name](keys=keys, args=[self._now(), *arguments], client=pipeline)
        return pipeline.execute()

    def _now(self) -> int | str:
        return "" if self._clock is None else self._clock()

    # -- reading dead letters --

    def _letter_ids(self, which: DeadLetterFilter) -> Iterator[list[str]]:
        if which.id is not None:
            yield [which.id] if which.before is None or which.id < which.before else []
            return
        highest = "+" if which.before is None else f"({which.before}"
        while True:
            ids: Any = self._client.zrevrangebylex(_LETTERS, highest, "-", start=0, num=PAGE)
            if not ids:
                return
            yield ids
            highest = f"({ids[-1]}"

    def _letters(self, ids: list[str]) -> list[DeadLetterRecord]:
        pipeline = self._client.pipeline(transaction=False)
        for letter_id in ids:
            pipeline.hgetall(_name("letter", letter_id))
        return [_letter(row) for row in pipeline.execute() if row]

    # -- problems --

    def _look_for_risks(self, on_eviction: str) -> None:
        facts: Any = {}
        with self._failures(), suppress(ResponseError):
            # Some servers do not allow every user to call INFO.
            facts = self._client.info()
        policy = facts.get("maxmemory_policy")
        if policy is None and on_eviction == "refuse":
            raise StoreRefused(
                f"{self.shown_url} does not report its maxmemory-policy, so it may evict keys; "
                "allow its user to call INFO"
            )
        if policy not in {None, "noeviction"}:
            notice = (
                f"{self.shown_url} evicts keys when its memory is full (maxmemory-policy "
                f"{policy}), so calls with evicted keys can run twice; set noeviction"
            )
            if on_eviction == "refuse":
                raise StoreRefused(notice)
            self.notices.append(notice)
        if facts.get("aof_enabled", 1) == 0:
            self.notices.append(
                f"{self.shown_url} does not log its writes, so a restart loses keys, and calls "
                "with lost keys can run twice; set appendonly yes"
            )

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except RedisError as error:
            raise self._translated(error) from error
        except BaseException:
            # For example, a time limit that expired between a request and its response. The next
            # request on this connection would receive that response.
            self._client.connection_pool.disconnect()
            raise

    def _translated(self, error: RedisError) -> StoreError:
        return translate_error(error, self.shown_url, self._secrets.masked(error))


def translate_error(error: RedisError, place: str, words: str) -> StoreError:
    """Return duly's error for an error of the driver.

    The driver removes an error code that it knows from the message. A server before version 7 puts
    the code of an error in a script into the middle of the message.
    """
    names = redis.exceptions
    refusals = (names.AuthenticationError, names.AuthorizationError, names.NoPermissionError)
    if isinstance(error, refusals) or re.search(r"\b(NOAUTH|WRONGPASS|NOPERM)\b", words):
        return StoreRefused(
            f"{place} refuses the command ({words}); check the user, the password and the "
            "permissions of the user"
        )
    if isinstance(error, names.MovedError | names.AskError):
        return StoreRefused(
            f"{place} is part of a Redis Cluster ({words}), which a guard cannot use; use a "
            "standalone Redis or PostgreSQL"
        )
    if re.search(r"\bOOM\b|when used memory >", words):
        return StoreFull(
            f"{place} is full ({words}); nothing was written; raise maxmemory or free memory"
        )
    if isinstance(error, names.ReadOnlyError) or re.search(r"\b(READONLY|MISCONF)\b", words):
        return StoreReadOnly(
            f"{place} does not accept writes ({words}); use the primary, and check that it can "
            "save to disk"
        )
    outages = (names.ConnectionError, names.TimeoutError, names.ClusterDownError, NoScriptError)
    if isinstance(error, outages) or re.search(r"\b(LOADING|BUSY|NOREPLICAS|TRYAGAIN)\b", words):
        return StoreUnavailable(
            f"{place} cannot be reached ({words}); check that the server runs and that the address "
            "is right"
        )
    return StoreError(f"{place}: {words}")


def _options(url: str, shown_url: str) -> dict[str, Any]:
    """Return the connection options: those of the address, and the required ones."""
    try:
        given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call] # it has no types
    except ValueError:
        # The driver's message may repeat a password that contains special characters.
        raise StoreRefused(
            f"the address {shown_url} is not valid; write it as "
            "redis://user:password@host:port/number, with %-codes for special characters"
        ) from None
    defaults: dict[str, Any] = {
        "socket_timeout": REDIS_SECONDS,
        "socket_connect_timeout": REDIS_SECONDS,
    }
    if "path" not in given:
        defaults["socket_keepalive"] = True
    # Some ops must not be repeated blindly, so callers that know the op retry.
    has_to_be = {"decode_responses": True, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
    return defaults | given | has_to_be


def _script(name: str) -> str:
    return (Path(__file__).parent / "lua" / f"{name}.lua").read_text()


def _name(what: str, text: str) -> str:
    """Return the name of a key or a dead letter in Redis, which reveals no text of a user."""
    return f"{_NAMES}:{what}:{sha256(text.encode()).hexdigest()}"


def _call(op: AnyOp) -> Call:
    match op:
        case AcquireKey(key, owner, holder, fingerprint, lease, ttl):
            keys = [_name("key", key), _FENCE]
            return "acquire", keys, [owner, holder, _or(fingerprint), lease, _or(ttl), _ROOM]
        case RenewKey(key, owner, fence, lease):
            return "renew", [_name("key", key)], [owner, fence, lease, _ROOM]
        case FinishKey(key, owner, fence, ttl, result, problem):
            what = _pairs({"result": result, "problem": problem})
            return "finish", [_name("key", key)], [owner, fence, "done", _or(ttl), 1, *what]
        case FailKey(key, owner, fence, ttl, began):
            return "finish", [_name("key", key)], [owner, fence, "failed", _or(ttl), int(began)]
        case ForgetKey(key):
            return "forget", [_name("key", key)], []
        case PutDeadLetter(letter_id):
            keys = [_name("letter", letter_id), _LETTERS, _LETTER_ENDS]
            what = _pairs({name: getattr(op, name) for name in _LETTER_TEXTS})
            return "put_dead_letter", keys, [letter_id, _or(op.ttl), FORGET_BATCH, *what]
        case EndDeadLetter(letter_id, state, actor, reason):
            return "end_dead_letter", [_name("letter", letter_id)], [state, actor, reason]
        case _:
            raise StoreRefused(f"a Redis keeps keys of the guard alone, so it cannot do {op!r}")


def _answer(op: AnyOp, answer: Any) -> Any:  # noqa: ANN401 - the op says which
    if isinstance(op, AcquireKey):
        is_ours, state, fence, holder, left, attempts, losses, conflict, result, problem = answer
        return Guarded(
            bool(is_ours), state, int(fence), holder, left, int(attempts), int(losses),
            bool(conflict), result, problem,
        )  # fmt: skip
    return None if answer is None else bool(answer)


def _or(value: Any) -> Any:  # noqa: ANN401 - a text or a number
    """Return an argument of a script. Scripts have no None."""
    return "" if value is None else value


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _pairs(values: dict[str, str | int | None]) -> list[str | int]:
    kept = {name: value for name, value in values.items() if value is not None}
    return [part for pair in kept.items() for part in pair]


def _letter(row: dict[str, str]) -> DeadLetterRecord:
    fields: dict[str, Any] = {name: row.get(name) for name in DeadLetterRecord._fields}
    for name in ("attempts", "created_at", "ended_at"):
        fields[name] = _number(fields[name])
    for name in ("namespace", "application", "fingerprint"):
        fields[name] = fields[name] or ""
    return DeadLetterRecord(**fields)


def _add_to_group(group: DeadLetterGroup | None, letter: DeadLetterRecord) -> DeadLetterGroup:
    """Return a group with one more dead letter. They come newest first."""
    at = letter.created_at
    if group is None:
        return DeadLetterGroup(
            letter.task, letter.fingerprint, 1, letter.error, at, at, letter.id, letter.engine
        )
    return group._replace(
        count=group.count + 1, error=max(group.error or "", letter.error), first_at=at
    )


def _fits(letter: DeadLetterRecord, which: DeadLetterFilter) -> bool:
    wanted = (
        which.state, which.engine, which.task, which.cause, which.namespace, which.fingerprint
    )  # fmt: skip
    said = (
        letter.state, letter.engine, letter.task, letter.cause, letter.namespace,
        letter.fingerprint,
    )  # fmt: skip
    is_recent = which.since is None or letter.created_at >= which.since
    return is_recent and all(want in {None, have} for want, have in zip(wanted, said, strict=True))
