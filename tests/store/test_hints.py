"""Notifications as text."""

import json

import pytest

from duly.clock import new_id
from duly.core.concurrency_limits import limited_lane
from duly.store.hints import (
    MOST_CHARACTERS,
    MOST_PLACES,
    ClaimNotice,
    Hint,
    HintMessage,
    HintPlace,
    decode,
    encode,
    hints_of,
    merged,
    new_hint,
)
from duly.store.ops.runs import Enqueue

MAIL = HintPlace("mail", "thread", "send")


def enqueue(place: HintPlace = MAIL, **options: int) -> Enqueue:
    return Enqueue(new_id(), place.task, place.queue, place.lane, 0, "[]", **options)


@pytest.mark.parametrize(
    "said",
    [
        [Hint("h1", MAIL, 7, ("w1", "w2")), Hint("h2", HintPlace("ünïcode", "loop", "t"))],
        [],
        ClaimNotice(("h1", "h2"), "w1", ("w2",)),
    ],
)
def test_a_message_that_was_encoded_is_decoded_to_an_equal_message(
    said: list[Hint] | ClaimNotice,
) -> None:
    assert decode(encode(said)) == HintMessage(said)
    assert decode(encode(said, "p1")) == HintMessage(said, "p1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "01a1ec5a-4014-712b-8fcd-bd3baae987ba",
        "[]",
        "7",
        "{}",
        '{"v":2,"ready":[]}',
        '{"v":1,',
        "[" * 7000,
    ],
)
def test_a_text_of_another_version_is_ignored(text: str) -> None:
    assert decode(text) is None


@pytest.mark.parametrize(
    "ready",
    [
        7,
        [7],
        [{"id": "h"}],
        [{"id": "h", **MAIL._asdict(), "runs": "x"}],
        [{"id": "h", **MAIL._asdict(), "runs": float("inf")}],
        [{"id": "h", **MAIL._replace(lane="of a later version")._asdict(), "runs": 1}],
    ],
)
def test_a_text_with_fields_of_another_type_is_ignored(ready: object) -> None:
    assert decode(json.dumps({"v": 1, "ready": ready})) is None
    assert decode(json.dumps({"v": 1, "taken": ready})) is None


def test_an_unknown_field_is_ignored() -> None:
    hint = Hint("h", MAIL)
    fields = json.loads(encode([hint]))
    fields["ready"][0]["due"] = fields["sent"] = 5

    assert decode(json.dumps(fields)) == HintMessage([hint])


def test_hints_name_the_places_of_runs_that_are_due() -> None:
    slot = MAIL._replace(lane=limited_lane("thread", "send", "key"))

    hints = hints_of([enqueue(), enqueue(), enqueue(slot)])

    assert {hint.place: hint.runs for hint in hints} == {MAIL: 2, slot: 1}
    assert len({hint.id for hint in hints}) == 2


@pytest.mark.parametrize("options", [{"delay": 5}, {"at": 5}])
def test_hints_about_a_run_that_is_not_due_name_no_place(options: dict[str, int]) -> None:
    assert not hints_of([enqueue(), enqueue(**options)])


def test_hints_about_a_run_that_another_engine_carries_name_no_place() -> None:
    assert not hints_of([enqueue(), enqueue(MAIL._replace(lane="carried"))])


def test_hints_about_runs_in_many_places_name_none() -> None:
    ops = [enqueue(MAIL._replace(queue=f"q{n}")) for n in range(MOST_PLACES + 1)]

    assert len(hints_of(ops[1:])) == MOST_PLACES
    assert not hints_of(ops)


def test_a_text_is_short_enough_for_the_server() -> None:
    places = [HintPlace("q" * 255, "thread", f"{n}" * 255) for n in range(MOST_PLACES)]
    workers = tuple(f"{n:036}" for n in range(1000))

    for said in (
        [new_hint(place) for place in places],
        [new_hint(MAIL, busy=workers)],
        ClaimNotice(tuple(worker[:12] for worker in workers), "w", workers),
    ):
        text = encode(said)
        message = decode(text)
        assert len(text) <= MOST_CHARACTERS
        assert message is not None
        assert isinstance(message.said, ClaimNotice) == isinstance(said, ClaimNotice)


def test_two_hints_about_one_place_are_merged_into_one_with_a_new_id() -> None:
    one, two = Hint("1", MAIL, 2, ("w1",)), Hint("2", MAIL, 3)

    both = merged(one, two)

    assert both == Hint(both.id, MAIL, 5)
    assert both.id not in {"1", "2"}


def test_a_hint_that_is_passed_on_before_it_was_sent_replaces_itself() -> None:
    one = Hint("1", MAIL, 2)
    passed = one._replace(busy=("w1",))

    assert merged(one, passed) == passed
