"""The text of notifications, which name ready runs or the worker that has taken them.

A notification is a hint. If it is lost, or if workers disagree about their order, a run starts
later, at the next poll. Nothing else depends on it.

The text is JSON with a version, so that later versions can add fields. If a worker cannot decode a
text, any run may have become ready, so every worker looks for runs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from duly.clock import new_id
from duly.core.concurrency_limits import slot_of
from duly.core.served_queues import ServedQueues
from duly.core.states import OWN_SLOT_KINDS
from duly.store.ops.runs import Enqueue

VERSION = 1
MOST_PLACES = 16
MOST_BUSY = 16
MOST_TAKEN = 128
MOST_CHARACTERS = 4000
"""Half the length that PostgreSQL accepts. A longer text is replaced by one that names no runs."""

_merges = count()


class HintPlace(NamedTuple):
    """The queue and lane of a waiting run, and the task that a worker needs to claim it."""

    queue: str
    lane: str
    task: str


class Hint(NamedTuple):
    """A hint that runs are ready in one place."""

    id: str
    """Names the hint in later messages, and determines which worker looks first."""
    place: HintPlace
    runs: int = 1
    busy: tuple[str, ...] = ()
    """Workers that had no room for these runs."""
    is_near: bool = False
    """Whether this process sent the hint. Its own workers then look at once."""


ReadyHints = Sequence[Hint]
"""An empty sequence means that any run may have become ready."""


class ClaimNotice(NamedTuple):
    """A notice that a worker has taken the runs of some hints. If it left any, a hint follows."""

    ids: tuple[str, ...]
    worker_id: str
    busy: tuple[str, ...] = ()
    """Workers that should have looked first and did not."""


class HintMessage(NamedTuple):
    """One notification. `sender` names the process if its own workers already know of it."""

    said: ReadyHints | ClaimNotice
    sender: str = ""


class Peer(NamedTuple):
    """The queues and tasks that a live worker has registered."""

    queues: ServedQueues
    tasks: frozenset[str]

    def serves(self, place: HintPlace) -> bool:
        """Return whether the worker can claim runs that wait there."""
        return place.task in self.tasks and self.queues.includes(place.queue)


WakeCallback = Callable[[], None]
HintCallback = Callable[[Hint | ClaimNotice], None]


class HintChannel(Protocol):
    """The part of a store that wakes the workers of other processes."""

    def wake(self, *ops: Enqueue) -> None:
        """Hint to workers that these runs are ready. Without ops, any run may be ready."""
        ...

    def pass_on(self, hint: Hint) -> None:
        """Send a hint again, to other workers."""
        ...

    def listen(self, woken: WakeCallback, hinted: HintCallback | None = None) -> Callable[[], None]:
        """Call `woken` at every hint until the returned function is called.

        If `hinted` is given, messages that name runs go to it instead. Not every store sends these.
        """
        ...

    def hears_hints(self) -> bool:
        """Return whether hints of other processes now reach a listener in this process."""
        ...

    def read_peers(self) -> Mapping[str, Peer]:
        """Return all live workers by their ids, or no worker if the store's hints name no runs."""
        ...


class UnnamedHints:
    """The part of a store whose hints name no runs. Every worker receives all of them and looks."""

    def pass_on(self, hint: Hint) -> None:
        """Do nothing. Every worker has already received the hint."""

    def read_peers(self) -> Mapping[str, Peer]:
        """Return no worker, since no worker waits for another one to look first."""
        return {}


def new_hint(place: HintPlace, runs: int = 1, *, busy: tuple[str, ...] = ()) -> Hint:
    """Return a hint that no message has named yet."""
    return Hint(_id_from(new_id()), place, runs, busy)


def hints_of(ops: Sequence[Enqueue]) -> ReadyHints:
    """Return the hints for runs that were just accepted."""
    counts: dict[tuple[str, str, str], int] = {}
    ids: dict[tuple[str, str, str], str] = {}
    for op in ops:
        lane = op.lane
        if op.delay or op.at is not None:
            # A worker must read the due time of a run that is not due.
            return ()
        if lane not in OWN_SLOT_KINDS and slot_of(lane) not in OWN_SLOT_KINDS:
            # A worker must hand over a run that another engine carries.
            return ()
        place = (op.queue, lane, op.task)
        counts[place] = counts.get(place, 0) + 1
        ids[place] = op.run_id
    if len(counts) > MOST_PLACES:
        return ()
    return [Hint(_id_from(ids[place]), HintPlace(*place), runs) for place, runs in counts.items()]


def merged(one: Hint, other: Hint) -> Hint:
    """Return one hint for the runs of two hints in the same place."""
    if one.id == other.id:
        return other
    # It has a new id: if workers have taken the runs of one hint, the other hint's runs remain.
    return Hint(f"{other.id}.{next(_merges)}", one.place, one.runs + other.runs)


def _id_from(run_id: str) -> str:
    """Return the random part of a UUIDv7, which is unique enough for hints."""
    return run_id[-12:]


def encode(said: ReadyHints | ClaimNotice, sender: str = "") -> str:
    """Return the text of a notification."""
    fields: dict[str, Any] = {"v": VERSION}
    if sender:
        fields["from"] = sender
    anything = _dumped(fields)
    if isinstance(said, ClaimNotice):
        fields |= {"taken": said.ids[:MOST_TAKEN], "by": said.worker_id}
        fields["busy"] = said.busy[:MOST_BUSY]
    elif said:
        fields["ready"] = [_fields(hint) for hint in said]
    text = _dumped(fields)
    return text if len(text) <= MOST_CHARACTERS else anything


def decode(text: str) -> HintMessage | None:
    """Return the message of a notification; None if it cannot be decoded."""
    try:
        fields = json.loads(text)
        if fields["v"] != VERSION:
            return None
        sender = str(fields.get("from", ""))
        if "taken" in fields:
            ids = tuple(map(str, fields["taken"]))
            return HintMessage(ClaimNotice(ids, str(fields["by"]), _texts(fields, "busy")), sender)
        return HintMessage([_hint(each) for each in fields.get("ready", ())], sender)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return None


def _fields(hint: Hint) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": hint.id, **hint.place._asdict(), "runs": hint.runs}
    return fields | {"busy": hint.busy[:MOST_BUSY]} if hint.busy else fields


def _hint(fields: Mapping[str, Any]) -> Hint:
    place = HintPlace(*(str(fields[name]) for name in HintPlace._fields))
    if slot_of(place.lane) not in OWN_SLOT_KINDS:
        raise ValueError(place.lane)
    return Hint(str(fields["id"]), place, int(fields["runs"]), _texts(fields, "busy"))


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(map(str, fields.get(name, ())))


def _dumped(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
