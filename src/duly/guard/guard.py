"""Guard: runs one body per key, on whichever engine carries it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, ParamSpec, TypeVar, overload

from duly.actor import resolve_actor
from duly.clock import MICROSECONDS, monotonic
from duly.core.payload import fingerprint_of
from duly.errors import BadOption, Busy
from duly.guard.claim import ClaimFinalizer, GuardClaim, KeyLease, PlainResultCodec, ResultCodec
from duly.guard.dead_letters import GuardDeadLetters
from duly.guard.entry import KeyEntry
from duly.guard.idempotency import IdempotentFunction, KeyedFunction, guard_function
from duly.guard.keys import check_namespace, stored_key
from duly.guard.ledgers import open_ledger
from duly.guard.renewal import KeyRenewer
from duly.guard.threaded_ledger import ThreadedLedger
from duly.guard.threads import HelperThreads
from duly.limits import DELAY_SECONDS, GUARD_LEASE_SECONDS, GUARD_TTL_SECONDS, LOCK_SECONDS
from duly.settings import store_url
from duly.store.ops.guard import AcquireKey, ForgetKey, Guarded, GuardedKey
from duly.store.per_process import PerProcess
from duly.store.protocol import Ledger

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_NOTHING: Any = object()
_PLAIN = PlainResultCodec()


class Guard:
    """A ledger of keys. Each key's body runs once, until its result is forgotten."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "",
        lease: float = GUARD_LEASE_SECONDS,
        ttl: float | None = GUARD_TTL_SECONDS,
        on_eviction: Literal["warn", "refuse"] = "warn",
    ) -> None:
        """Keep keys at an address: `sqlite:///…`, `postgresql://…` or `redis://…`.

        Without an address, use the application's store: DULY_URL, else sqlite:///duly.db. Each
        namespace has its own keys. `lease` is how long a key stays held after its holder died.
        `ttl` is how long a result is kept, and None means forever. `on_eviction` applies to a Redis
        that evicts keys when its memory is full: "warn" logs a warning, and "refuse" raises.
        """
        self._url = store_url(url)
        self.namespace = check_namespace(namespace)
        if not 1 <= lease <= LOCK_SECONDS:
            raise BadOption(
                f"lease must be from 1 second to {LOCK_SECONDS}, not {lease!r}; duly renews the "
                "lease while the guarded function runs, so a short lease is enough"
            )
        self.lease = float(lease)
        self.ttl = check_ttl(ttl)
        if on_eviction not in {"warn", "refuse"}:
            raise BadOption(f'on_eviction must be "warn" or "refuse", not {on_eviction!r}')
        self.on_eviction: Literal["warn", "refuse"] = on_eviction
        self._open: PerProcess[_OpenLedger] = PerProcess(self._open_ledger)
        self._threads = HelperThreads()
        self.letters = GuardDeadLetters(lambda: ThreadedLedger(self.call_ledger), self.namespace)

    def once(
        self,
        key: str,
        *,
        ttl: float | None = _NOTHING,
        payload: object = _NOTHING,
        wait: float = 0.0,
    ) -> KeyEntry:
        """Return an entry for `with` or `async with`.

        The caller whose claim is `first` runs the body.

        `payload` is what the key stands for. A key that was used with another payload raises
        KeyConflict. While another caller runs the body, this waits for up to `wait` seconds and
        then raises Busy.
        """
        fingerprint = None if payload is _NOTHING else fingerprint_of(payload)
        kept = self.ttl if ttl is _NOTHING else check_ttl(ttl)
        return self.enter(key, ttl=kept, fingerprint=fingerprint, wait=wait, results=_PLAIN)

    def enter(
        self,
        key: str,
        *,
        ttl: float | None,
        fingerprint: str | None,
        wait: float = 0.0,
        results: ResultCodec = _PLAIN,
    ) -> KeyEntry:
        """Return an entry, as `once` does, for callers with a fingerprint and a result codec."""
        place = stored_key(self.namespace, key)

        def attempt(owner: str) -> GuardClaim | Guarded:
            return self._try(key, place, owner, ttl, fingerprint, results)

        return KeyEntry(key, attempt, wait, self._threads)

    @overload
    def idempotent(self, function: Callable[P, R]) -> IdempotentFunction[P, R]: ...
    @overload
    def idempotent(
        self,
        *,
        key: Callable[..., str] | None = None,
        name: str | None = None,
        ttl: float | None = ...,
        wait: float = 0.0,
    ) -> Callable[[Callable[P, R]], IdempotentFunction[P, R]]: ...
    def idempotent(
        self,
        function: Any = None,
        *,
        key: Callable[..., str] | None = None,
        name: str | None = None,
        ttl: float | None = _NOTHING,
        wait: float = 0.0,
    ) -> Any:
        """Make a function run once per key. Later callers get the result of the first call.

        `key` is called with the function's arguments and returns a text that is unique among the
        calls of this function. Without `key`, calls with equal arguments share one key. `name`
        identifies the function in keys. By default it is where the function is defined, so keep it
        when you move it.
        """
        kept = self.ttl if ttl is _NOTHING else check_ttl(ttl)

        def decorate(found: Callable[..., Any]) -> Any:  # noqa: ANN401 - as above
            return guard_function(
                KeyedFunction(self, found, key=key, name=name, ttl=kept, wait=wait)
            )

        return decorate if function is None else decorate(function)

    def look(self, key: str) -> GuardedKey | None:
        """Return the state of a key. None if it is not known, or was forgotten."""
        place = stored_key(self.namespace, key)
        found = self.call_ledger(lambda ledger: ledger.get_key(place))
        return None if found is None else found._replace(key=key)

    def reset(self, key: str) -> bool:
        """Forget a key, so that its body may run again. Return whether the key was known.

        Raise Busy if a caller holds the key.
        """
        op = ForgetKey(stored_key(self.namespace, key))
        was_known = self.call_ledger(lambda ledger: ledger.do(op))
        if was_known is None:
            found = self.look(key)
            holder, left = ("somebody", 0) if found is None else (found.holder, found.left)
            raise Busy(key, holder, left / MICROSECONDS)
        return bool(was_known)

    def call_ledger(self, act: Callable[[Ledger], T]) -> T:
        """Call a function with the ledger, to its end even if this thread is interrupted."""
        return self._threads.run(lambda: act(self.ledger))

    def close(self) -> None:
        """Finish pending jobs and close the ledger. The next use opens it again."""
        threads, self._threads = self._threads, HelperThreads()
        # A job that is still running would open the ledger again, and nothing would close it.
        threads.close()
        threads.wait_until_idle()
        self._open.close()

    @property
    def url(self) -> str:
        """The address of the ledger, whether open or not."""
        return self._url

    @property
    def ledger(self) -> Ledger:
        """The ledger that contains the keys."""
        return self._open.get().ledger

    def _open_ledger(self) -> "_OpenLedger":
        return _OpenLedger(open_ledger(self._url, on_eviction=self.on_eviction), self.lease)

    def _try(
        self,
        key: str,
        place: str,
        owner: str,
        ttl: float | None,
        fingerprint: str | None,
        results: ResultCodec,
    ) -> GuardClaim | Guarded:
        """Try to take a key, on a thread that cannot be interrupted."""
        opened = self._open.get()
        # While the key is held. The count of lost attempts must outlive a result with a short ttl.
        kept = None if ttl is None else round(max(ttl, GUARD_TTL_SECONDS) * MICROSECONDS)
        lease = round(self.lease * MICROSECONDS)
        op = AcquireKey(place, owner, opened.holder, fingerprint, lease, kept)
        sent_at = monotonic()
        found: Guarded
        found = opened.ledger.do(op)
        if found.is_ours:
            hold = KeyLease(
                lambda: self.ledger,
                key=place,
                owner=owner,
                fence=found.fence,
                ttl=ttl,
                deadline=sent_at + self.lease - opened.margin,
                patience=self.lease,
                ended=opened.renewer.drop,
            )
            threads = self._threads
            threads.ensure_thread()
            claim = GuardClaim(key, found, results=results, hold=hold, threads=threads)
            hold.finalizer = ClaimFinalizer(claim, hold, threads, opened.ledger)
            opened.renewer.add(hold)
            return claim
        if found.state == "done" and not found.conflict:
            return GuardClaim(key, found, results=results)
        return found


class _OpenLedger:
    """The open resources of a guard in one process."""

    def __init__(self, ledger: Ledger, lease: float) -> None:
        self.ledger = ledger
        self.margin = lease / 6
        self.renewer = KeyRenewer(ledger, lease=lease, margin=self.margin)

    @cached_property
    def holder(self) -> str:
        """The name that this process holds its keys by."""
        return resolve_actor(None)

    def close(self) -> None:
        self.renewer.close()
        self.ledger.close()


def check_ttl(ttl: float | None) -> float | None:
    """Return how long to keep a key, or raise BadOption."""
    if ttl is not None and not 0 < ttl <= DELAY_SECONDS:
        raise BadOption(
            f"ttl must be more than 0 seconds and at most {DELAY_SECONDS}, or None to keep keys "
            f"forever, not {ttl!r}"
        )
    return ttl
