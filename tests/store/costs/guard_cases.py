"""The costs of the ops of locks and of the guard."""

from duly.store.ops.guard import (
    AcquireKey,
    EndDeadLetter,
    FailKey,
    FinishKey,
    ForgetKey,
    PutDeadLetter,
    RenewKey,
)
from duly.store.ops.locks import AcquireLock, ReleaseLock, RenewLock
from tests.store.conformance.verbs import ACTOR, HOUR_SECONDS, SECOND
from tests.store.costs.cases import case

TTL = 30 * SECOND
HOUR = round(HOUR_SECONDS * SECOND)

# -- locks --


def lock_op(owner="a"):
    """Build the op that takes the lock."""
    return AcquireLock("index", owner, f"holder {owner}", TTL)


@case("AcquireLock: free")
def lock_free(world):
    assert (yield lock_op()).is_ours


@case("AcquireLock: free, and held before")
def lock_released(world):
    found = world.apply(lock_op())
    world.apply(ReleaseLock("index", "a", found.fence))
    assert (yield lock_op("b")).is_ours


@case("AcquireLock: held")
def lock_held(world):
    world.apply(lock_op())
    found = yield lock_op("b")
    assert (found.is_ours, found.holder) == (False, "holder a")


@case("RenewLock: held")
def renew_lock(world):
    found = world.apply(lock_op())
    assert (yield RenewLock("index", "a", found.fence, TTL)) is True


@case("RenewLock: lost")
def renew_lost_lock(world):
    found = world.apply(lock_op())
    assert (yield RenewLock("index", "b", found.fence, TTL)) is False


@case("ReleaseLock: held")
def release_lock(world):
    found = world.apply(lock_op())
    assert (yield ReleaseLock("index", "a", found.fence)) is True


@case("ReleaseLock: lost")
def release_lost_lock(world):
    found = world.apply(lock_op())
    assert (yield ReleaseLock("index", "b", found.fence)) is False


# -- the guard --


def key_op(owner="a"):
    """Build the op that takes the key."""
    return AcquireKey("invoice", owner, f"holder {owner}", None, TTL, HOUR)


def finish_op(taken):
    """Build the op that records the end of a body."""
    return FinishKey("invoice", "a", taken.fence, HOUR, '"ok"')


@case("AcquireKey: free")
def acquire_free(world):
    assert (yield key_op()).is_ours


@case("AcquireKey: held")
def acquire_held(world):
    world.apply(key_op())
    assert (yield key_op("b")).is_ours is False


@case("AcquireKey: done")
def acquire_done(world):
    world.apply(finish_op(world.apply(key_op())))
    assert (yield key_op("b")).result == '"ok"'


@case("RenewKey: held")
def renew_key(world):
    taken = world.apply(key_op())
    assert (yield RenewKey("invoice", "a", taken.fence, TTL)) is True


@case("RenewKey: lost")
def renew_lost_key(world):
    taken = world.apply(key_op())
    assert (yield RenewKey("invoice", "b", taken.fence, TTL)) is False


@case("FinishKey: held")
def finish_key(world):
    assert (yield finish_op(world.apply(key_op()))) is True


@case("FinishKey: lost")
def finish_lost_key(world):
    assert (yield finish_op(world.apply(key_op("b")))) is False


@case("FailKey: held")
def fail_key(world):
    taken = world.apply(key_op())
    assert (yield FailKey("invoice", "a", taken.fence, HOUR)) is True


@case("ForgetKey: done")
def forget_key(world):
    world.apply(finish_op(world.apply(key_op())))
    assert (yield ForgetKey("invoice")) is True


@case("ForgetKey: held")
def forget_held_key(world):
    world.apply(key_op())
    assert (yield ForgetKey("invoice")) is None


@case("ForgetKey: unknown")
def forget_unknown_key(world):
    assert (yield ForgetKey("invoice")) is False


def letter_op(letter_id="1"):
    """Build the op that keeps a dead letter."""
    return PutDeadLetter(
        letter_id, "celery", "shop.charge", "[[42],{}]", None, "exhausted",
        "ValueError: no", None, 4, "mail", None, HOUR,
    )  # fmt: skip


@case("PutDeadLetter: new")
def put_letter(world):
    assert (yield letter_op()) is True


@case("PutDeadLetter: known")
def put_letter_again(world):
    world.apply(letter_op())
    assert (yield letter_op()) is False


@case("EndDeadLetter: open")
def end_letter(world):
    world.apply(letter_op())
    assert (yield EndDeadLetter("1", "discarded", ACTOR)) is True


@case("EndDeadLetter: ended before")
def end_letter_again(world):
    world.apply(letter_op(), EndDeadLetter("1", "discarded", ACTOR))
    assert (yield EndDeadLetter("1", "discarded", ACTOR)) is False
