"""The child runs that a body waits for in `gather`: enqueued once, and their results."""

import json
from collections.abc import Iterable
from typing import Any, Protocol

from duly.clock import MICROSECONDS
from duly.context import RunContext
from duly.core.batches import batches, bytes_of
from duly.core.codec import Codec
from duly.core.json_text import sha256
from duly.core.payload import CallCodec, decode_value, encode_value
from duly.core.record import RunRecord
from duly.core.states import PARENT_TAG, State
from duly.errors import BadOption, PayloadError, RunFailed
from duly.limits import ENQUEUE_BATCH, KEY_BYTES, KEY_TTL_SECONDS, TRANSACTION_BYTES
from duly.store.ops.runs import Enqueue, Key
from duly.store.protocol import Store


class TaskCall(Protocol):
    """A call of a task, from `task.call(…)`."""

    op: Enqueue


def enqueue_children(context: RunContext, calls: Iterable[TaskCall], name: str) -> list[str]:
    """Enqueue each call once, however often this is repeated. The key identifies the child.

    The key becomes free a day after the child's end. A later attempt that has no record of the
    children enqueues them again.
    """
    ops = []
    # Long enough for an attempt that died before it recorded its children. A key without end would
    # keep the children forever too.
    ttl = KEY_TTL_SECONDS * MICROSECONDS
    for number, call in enumerate(calls):
        op = call.op
        if op.key is not None:
            raise BadOption(
                "a call in gather(…) cannot have a key: gather(…) gives each call its own key"
            )
        tags = json.loads(op.tags) if op.tags else {}
        task = context.definition_of(op.task)
        other_names = () if task is None else task.other_names(op.task)
        child_key = _child_key(context.run_id, name, number)
        key = Key(child_key, "", ttl, active_only=False, other_names=other_names)
        ops.append(op._replace(key=key, tags=json.dumps(tags | {PARENT_TAG: context.run_id})))
    store = context.store
    found: list[str] = []
    for batch in batches(
        ops,
        most=ENQUEUE_BATCH,
        most_bytes=TRANSACTION_BYTES,
        size_of=lambda op: bytes_of(op.arguments),
    ):
        found += [answer.run_id for answer in store.apply(batch)]
    return found


def _codec_of(context: RunContext, task: str) -> Codec | None:
    """Return the codec for the results of a task, or None if the task is not known here."""
    found = context.definition_of(task)
    return None if found is None else found.codec


def _child_key(run_id: str, name: str, number: int) -> str:
    """Return a unique key for one child, however long the name of its gather is."""
    key = f"{run_id} {name} {number}"
    if len(key.encode()) <= KEY_BYTES:
        return key
    return f"{run_id} {sha256(name)} {number}"


def get_succeeded_child(store: Store, run_id: str) -> RunRecord:
    """Return a child that has succeeded. Raise RunFailed if it has not."""
    run = store.get_run(run_id)
    if run is None or run.state != State.SUCCEEDED:
        state = "gone" if run is None else run.state
        raise RunFailed(
            run_id, f"child run {run_id} is {state}", None if run is None else run.error
        )
    return run


def decode_child_result(context: RunContext, run: RunRecord) -> Any:  # noqa: ANN401 - any result
    """Return the result of a child, decoded according to its task's annotation."""
    codec = _codec_of(context, run.task)
    if codec is not None:
        return codec.decode_result(run.result)
    return None if run.result is None else decode_value(run.result)


def encode_child_results(
    context: RunContext, ends: list[RunRecord], results: list[Any]
) -> str | None:
    """Return the results of children as one text, so that they outlive the children.

    Return None if they are too large, contain objects of classes, or must be stored encrypted. A
    later attempt then reads them from the children again.
    """
    codecs = {run.task: _codec_of(context, run.task) for run in ends}
    if not all(codec is None or isinstance(codec, CallCodec) for codec in codecs.values()):
        return None
    try:
        return encode_value(results)
    except PayloadError:
        return None


def have_ended(store: Store, run_ids: list[str]) -> bool:
    """Return whether none of these runs is live."""
    live = {State.QUEUED, State.RUNNING}
    for begin in range(0, len(run_ids), ENQUEUE_BATCH):
        states = store.get_states(run_ids[begin : begin + ENQUEUE_BATCH])
        if not live.isdisjoint(map(State, states.values())):
            return False
    return True
