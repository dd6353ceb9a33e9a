"""Which workers look for a run that a hint names: fleets without a database, on a fake clock."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from duly.core.served_queues import ServedQueues
from duly.errors import StoreUnavailable
from duly.settings import LEASE_SECONDS
from duly.store.hints import ClaimNotice, Hint, HintPlace, Peer, decode
from duly.worker.services import hint_handler
from duly.worker.services.hint_handler import HintHandler

MAIL = HintPlace("mail", "thread", "send")
OTHER = HintPlace("other", "thread", "send")
UNKNOWN = HintPlace("mail", "thread", "nobody-knows")


class Fleet:
    """Workers that hear each other's messages at once, and a table of ready runs."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.ready: list[HintPlace] = []
        self.workers: dict[str, Member] = {}
        self.looks: list[tuple[str, float]] = []
        """Which worker looked, and when."""
        self.peeks: list[str] = []
        self.passes = 0

    def add(self, count: int, *, queues: tuple[str, ...] = (), room: int = 5) -> None:
        for _ in range(count):
            worker_id = f"w{len(self.workers)}"
            self.workers[worker_id] = Member(self, worker_id, queues, room)
        peers = {
            key: Peer(ServedQueues(tuple(member.queues)), frozenset({"send"}))
            for key, member in self.workers.items()
        }
        for member in self.workers.values():
            member.hinted.know(peers)

    def enqueue(self, *places: HintPlace) -> list[tuple[str, float]]:
        """Make runs ready in one place, let two seconds pass, and return who looked, and when."""
        self.ready += places
        return self.hear(Hint(self._next_id(), places[0], len(places)))

    def hear(self, hint: Hint, *, only: "Member | None" = None) -> list[tuple[str, float]]:
        """Let all workers hear a hint, or only one; return the looks of the next two seconds."""
        began = self.now
        before = len(self.looks)
        if only is None:
            self.say(hint)
        else:
            only.hinted.hear(hint)
        while (due := self._next_due()) is not None and due <= began + 2.0:
            self.now = max(self.now, due)
            for member in self.workers.values():
                if not member.is_frozen:
                    member.hinted.tick()
        self.now = began + 2.0
        return [(key, round(at - began, 3)) for key, at in self.looks[before:]]

    def say(self, said: Hint | ClaimNotice) -> None:
        for member in self.workers.values():
            if not member.is_frozen:
                member.hinted.hear(said)

    def first_for_the_next_hint(self) -> "Member":
        """Return the worker that looks first for the next run in the queue `mail`."""
        hint = Hint(self._next_id(), MAIL)
        some = next(iter(self.workers.values())).hinted
        return min(self.workers.values(), key=lambda one: some._key(hint, one.id, self.now))

    def _next_id(self) -> str:
        return f"h{len(self.looks)}-{self.now}"

    def _next_due(self) -> float | None:
        dues = [
            look.due
            for member in self.workers.values()
            if not member.is_frozen
            for look in member.hinted._pending.values()
        ]
        return min(dues, default=None)


class Member:
    """One worker: a real HintHandler on a claimer that takes from the fleet's table."""

    def __init__(self, fleet: Fleet, worker_id: str, queues: tuple[str, ...], room: int) -> None:
        self.fleet = fleet
        self.id = worker_id
        self.queues = queues
        self.is_frozen = False
        self.room_left = room
        self.fails = False
        self.general_looks = 0
        self.claimer: Any = SimpleNamespace(
            queues=tuple(SimpleNamespace(name=name, limit=None) for name in queues),
            room=SimpleNamespace(can_start=lambda _slot, _queue: self.room_left > 0),
            serves=ServedQueues(tuple(queues)).includes,
            is_spent=False,
            claim_for_hint=self._look_for,
            look_at_limits=lambda: None,
            was_full_at_hint=False,
        )
        store: Any = SimpleNamespace(pass_on=self._pass_on, read_peers=dict)
        registry: Any = SimpleNamespace(own_names=lambda: ("send",))
        self.hinted = HintHandler(store, registry, self.claimer, worker_id, self._look_for_runs)
        self.hinted.peek = lambda: fleet.peeks.append(worker_id)

    def _look_for(self, place: HintPlace, announcement: str | None) -> tuple[list[HintPlace], bool]:
        if self.fails:
            raise StoreUnavailable("the server is away")
        fleet = self.fleet
        fleet.looks.append((self.id, fleet.now))
        found = [ready for ready in fleet.ready if ready == place][: self.room_left]
        for ready in found:
            fleet.ready.remove(ready)
        self.room_left -= len(found)
        if found and announcement is not None:
            message = decode(announcement)
            assert message is not None
            assert isinstance(message.said, ClaimNotice)
            fleet.say(message.said)
        return found, bool(found) and self.room_left == 0

    def _pass_on(self, hint: Hint) -> None:
        self.fleet.passes += 1
        self.fleet.say(hint)

    def _look_for_runs(self) -> None:
        self.general_looks += 1


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    found = Fleet()
    monkeypatch.setattr(hint_handler, "monotonic", lambda: found.now)
    return found


def is_at_once(looks: list[tuple[str, float]]) -> bool:
    return [at for _, at in looks] == [0.0]


@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_one_worker_looks_for_one_run(fleet: Fleet, count: int) -> None:
    fleet.add(count, room=100)

    for _ in range(20):
        assert is_at_once(fleet.enqueue(MAIL))

    assert fleet.ready == []
    assert fleet.peeks == []
    assert fleet.passes == 0


def test_hints_spread_over_the_workers(fleet: Fleet) -> None:
    fleet.add(8, room=1000)

    looks = [fleet.enqueue(MAIL)[0][0] for _ in range(400)]

    assert all(20 <= looks.count(key) <= 100 for key in fleet.workers)


def test_a_frozen_first_worker_costs_one_hint_ten_milliseconds(fleet: Fleet) -> None:
    fleet.add(8, room=100)
    frozen = fleet.first_for_the_next_hint()
    frozen.is_frozen = True

    first = fleet.enqueue(MAIL)
    later = [fleet.enqueue(MAIL) for _ in range(6)]

    assert [at for _, at in first] == [0.01]
    assert all(map(is_at_once, later))


def test_a_frozen_worker_costs_nothing_more_while_its_lease_lasts(fleet: Fleet) -> None:
    fleet.add(8, room=100)
    frozen = fleet.first_for_the_next_hint()
    frozen.is_frozen = True
    fleet.enqueue(MAIL)

    began = fleet.now
    looks = [fleet.enqueue(MAIL) for _ in range(25)]

    assert fleet.now - began > LEASE_SECONDS
    assert all(map(is_at_once, looks))


def test_half_of_the_workers_frozen_delay_a_run_each_at_most(fleet: Fleet) -> None:
    fleet.add(32, room=1000)
    for number in range(0, 32, 2):
        fleet.workers[f"w{number}"].is_frozen = True

    delays = [fleet.enqueue(MAIL)[-1][1] for _ in range(7)]

    assert fleet.ready == []
    assert max(delays) <= 1.0
    # All ranks before that of the worker that took a run are known to be silent by now.
    marked = fleet.workers["w1"].hinted._busy_until
    assert len(marked) >= sum(delay > 0 for delay in delays)


def test_a_frozen_worker_that_takes_a_run_again_ranks_as_before(fleet: Fleet) -> None:
    fleet.add(8, room=100)
    frozen = fleet.first_for_the_next_hint()
    frozen.is_frozen = True
    fleet.enqueue(MAIL)
    frozen.is_frozen = False
    assert fleet.first_for_the_next_hint() is not frozen

    fleet.say(ClaimNotice(("another",), frozen.id))

    assert not any(frozen.id in member.hinted._busy_until for member in fleet.workers.values())


def test_a_full_first_worker_passes_the_hint_on_at_once(fleet: Fleet) -> None:
    fleet.add(8, room=100)
    full = fleet.first_for_the_next_hint()
    full.room_left = 0

    looks = [fleet.enqueue(MAIL) for _ in range(7)]

    assert all(map(is_at_once, looks))
    assert fleet.passes == 1
    assert full.claimer.was_full_at_hint


def test_half_of_the_workers_full_delay_no_run(fleet: Fleet) -> None:
    fleet.add(32, room=1000)
    for number in range(0, 32, 2):
        fleet.workers[f"w{number}"].room_left = 0

    looks = [fleet.enqueue(MAIL) for _ in range(50)]

    assert all(map(is_at_once, looks))


def test_a_fleet_of_full_workers_passes_a_hint_to_each_once(fleet: Fleet) -> None:
    fleet.add(8, room=0)

    assert fleet.enqueue(MAIL) == []
    passes = fleet.passes
    assert fleet.enqueue(MAIL) == []

    assert passes <= 8
    assert fleet.passes == passes
    # So whichever worker has room first looks.
    assert all(member.claimer.was_full_at_hint for member in fleet.workers.values())


def test_a_slot_that_becomes_free_while_a_hint_is_refused_is_not_missed(fleet: Fleet) -> None:
    fleet.add(1)
    (member,) = fleet.workers.values()
    answers = iter([False, True])
    member.claimer.room.can_start = lambda _slot, _queue: next(answers)

    fleet.enqueue(MAIL)

    assert member.general_looks == 1


def test_only_workers_that_serve_the_queue_look(fleet: Fleet) -> None:
    fleet.add(6, queues=("other",), room=100)
    fleet.add(2, queues=("mail",), room=100)

    looks = [fleet.enqueue(MAIL) for _ in range(20)]

    assert all(map(is_at_once, looks))
    assert {key for ((key, _),) in looks} == {"w6", "w7"}


@pytest.mark.parametrize("place", [OTHER, UNKNOWN])
def test_a_run_that_no_worker_serves_is_found_out_about_by_few_workers(
    fleet: Fleet, place: HintPlace
) -> None:
    fleet.add(8, queues=("mail",))

    assert fleet.enqueue(place) == []

    assert 1 <= len(fleet.peeks) <= 3
    assert len(fleet.peeks) == len(set(fleet.peeks))


def test_a_run_that_cannot_be_had_is_found_out_about(fleet: Fleet) -> None:
    """A paused queue or a limit keeps the run back: the worker that looked finds out why."""
    fleet.add(8, room=100)

    looks = fleet.hear(Hint("kept-back", MAIL))

    assert looks[0][1] == 0.0
    assert looks[0][0] in fleet.peeks


def test_as_many_workers_look_at_once_as_there_are_runs(fleet: Fleet) -> None:
    fleet.add(8, room=1)

    looks = fleet.enqueue(*[MAIL] * 5)

    assert len({key for key, _ in looks}) >= 5
    assert {at for _, at in looks[:5]} == {0.0}
    assert fleet.ready == []


def test_a_worker_that_filled_its_room_passes_the_rest_on(fleet: Fleet) -> None:
    fleet.add(2, room=3)
    first = fleet.first_for_the_next_hint()
    (second,) = (one for one in fleet.workers.values() if one is not first)
    second.is_frozen = True
    fleet.enqueue(*[MAIL] * 3)
    second.is_frozen = False
    assert fleet.passes == 0

    first.room_left = 2
    fleet.ready = [MAIL] * 4
    fleet.hear(Hint("many", MAIL, 4), only=first)

    assert fleet.passes == 1
    assert fleet.ready == []


def test_a_claim_that_fails_is_left_to_the_claimer(fleet: Fleet) -> None:
    fleet.add(1)
    (member,) = fleet.workers.values()
    member.fails = True

    assert fleet.enqueue(MAIL) == []

    assert member.general_looks == 1


def test_delays_grow_with_the_time_that_workers_take_to_answer(fleet: Fleet) -> None:
    fleet.add(8, room=1000)
    for number in range(60):
        hint = Hint(f"slow-{number}", MAIL)
        fleet.say(hint)
        fleet.now += 0.006
        fleet.say(ClaimNotice((hint.id,), "w0"))
    fleet.first_for_the_next_hint().is_frozen = True

    ((_, at),) = fleet.enqueue(MAIL)

    assert at == pytest.approx(0.02, abs=0.002)


def test_runs_in_two_places_are_left_to_the_workers_of_each(fleet: Fleet) -> None:
    fleet.add(4, queues=("mail",), room=100)
    fleet.add(4, queues=("other",), room=100)
    fleet.ready = [MAIL, OTHER]
    fleet.say(Hint("1", MAIL))

    fleet.hear(Hint("2", OTHER))

    assert fleet.ready == []
    assert len(fleet.looks) == 2
