"""Dead letters of other engines are stored whole, sent by one caller at a time, and ended once."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duly.core.record import DeadLetterGroup
from duly.errors import BadOption, LetterNotFound, PayloadError
from duly.guard.dead_letters import DeadLetterDraft, GuardDeadLetters, LetterNotSent
from duly.limits import DEAD_LETTER_LEASE_SECONDS, DEAD_LETTER_RETRY_FAILURES
from duly.store.ops.guard import DeadLetterRecord, EndDeadLetter, PutDeadLetter
from duly.store.reads import DeadLetterFilter
from tests.store.conformance.verbs import SECOND

pytestmark = pytest.mark.redis

TTL = 3600 * SECOND


def put(store: Any, letter_id: str, *, ttl: int | None = TTL, **changes: Any) -> bool:
    op = PutDeadLetter(
        letter_id, "celery", "shop.charge", "[[42],{}]", "invoice:42", "exhausted",
        "ValueError: no", "Traceback…", 4, "mail", '{"priority":3}', ttl, "eu", "shop", "f1",
    )  # fmt: skip
    return store.do(op._replace(**changes))


class TestKeeping:
    """The stored letters."""

    def test_a_letter_is_stored_once_with_all_its_fields(self, store, clock):
        now = clock.now()

        assert put(store, "1")
        assert not put(store, "1", task="another")

        assert store.list_dead_letters(DeadLetterFilter()) == [
            DeadLetterRecord(
                "1", "celery", "shop.charge", "[[42],{}]", "invoice:42", "exhausted",
                "ValueError: no", "Traceback…", 4, "mail", '{"priority":3}', "open", now, None,
                None, "eu", "shop", "f1", None,
            )
        ]  # fmt: skip

    def test_letters_are_found_by_their_fields_newest_first(self, store, clock):
        put(store, "1")
        clock.advance(10)
        since = clock.now()
        put(store, "2", task="shop.mail", cause="permanent", fingerprint="f2")
        put(store, "3", engine="rq", namespace="us")

        def ids(**which: Any) -> list[str]:
            return [letter.id for letter in store.list_dead_letters(DeadLetterFilter(**which))]

        assert ids() == ["3", "2", "1"]
        assert ids(id="2") == ["2"]
        assert ids(task="shop.charge") == ["3", "1"]
        assert ids(cause="permanent") == ["2"]
        assert ids(engine="celery") == ["2", "1"]
        assert ids(namespace="us") == ["3"]
        assert ids(fingerprint="f2") == ["2"]
        assert ids(since=since) == ["3", "2"]
        assert ids(before="3", limit=1) == ["2"]

    def test_letters_with_one_error_form_a_group_and_the_largest_group_is_first(self, store, clock):
        first_at = clock.now()
        put(store, "1")
        clock.advance(10)
        last_at = clock.now()
        put(store, "2")
        put(store, "3", fingerprint="f2")
        put(store, "4", namespace="us")
        store.do(EndDeadLetter("3", "discarded", "ann"))
        put(store, "5", engine="rq")

        groups = store.list_dead_letter_groups(DeadLetterFilter(namespace="eu"))

        whole = ("shop.charge", "f1", 2, "ValueError: no", first_at, last_at, "2", "celery")
        assert groups == [
            DeadLetterGroup(*whole),
            DeadLetterGroup("shop.charge", "f1", 1, "ValueError: no", last_at, last_at, "5", "rq"),
        ]
        assert (
            store.list_dead_letter_groups(DeadLetterFilter(task="shop.charge", limit=1))[0].count
            == 3
        )
        assert (
            store.list_dead_letter_groups(DeadLetterFilter(since=last_at, engine="celery"))[0].count
            == 2
        )

    def test_a_letter_is_ended_once_with_an_actor_and_a_reason(self, store, clock):
        put(store, "1")

        assert store.apply([EndDeadLetter("1", "replayed", "ann", "fixed")]) == [True]
        assert store.apply([EndDeadLetter("1", "discarded", "bob")]) == [False]
        assert store.apply([EndDeadLetter("2", "discarded", "bob")]) == [False]

        assert store.list_dead_letters(DeadLetterFilter()) == []
        (ended,) = store.list_dead_letters(DeadLetterFilter(state="replayed"))
        assert (ended.actor, ended.reason, ended.ended_at) == ("ann", "fixed", clock.now())

    def test_a_new_letter_deletes_those_that_have_expired(self, store, clock):
        put(store, "1", ttl=SECOND)
        put(store, "2", ttl=None)
        clock.advance(86_400 * 365)

        put(store, "3")

        assert [letter.id for letter in store.list_dead_letters(DeadLetterFilter())] == ["3", "2"]


class Died(BaseException):
    """Raised in place of the death of a process: nothing that would follow is done."""


class Engine:
    """An engine that accepts messages, except those that a test lets it refuse."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.refuses: dict[str, Exception] = {}

    def send(self, letter: DeadLetterRecord) -> None:
        if letter.id in self.refuses:
            raise self.refuses[letter.id]
        self.sent.append(letter.id)


@pytest.fixture
def engine():
    """The engine of the letters of these tests."""
    return Engine()


@pytest.fixture
def letters(store, engine):
    """The letters of a guard that knows one application."""
    return opened(store, engine)


def opened(store, engine, namespace=""):
    letters = GuardDeadLetters(lambda: store, namespace)
    letters.send_with("celery", engine.send, application="shop")
    return letters


def write(letters, **changes):
    draft = DeadLetterDraft(
        "celery", "shop.charge", "[[42],{}]", "permanent", "no", application="shop"
    )
    return letters.put(draft._replace(**changes))


class TestReplaying:
    """Sending letters to their engine again."""

    def test_a_letter_that_is_sent_ends_with_its_actor_and_reason(self, letters, engine):
        letter = write(letters)

        assert letters.replay(letter, actor="ann", reason="fixed") == (1, 0, ())
        assert letters.replay(letter) == (0, 1, ())

        assert engine.sent == [letter]
        ended = letters.get(letter)
        assert (ended.state, ended.actor, ended.reason) == ("replayed", "ann", "fixed")

    def test_concurrent_replays_of_a_letter_send_it_once(self, store, engine):
        begun = threading.Barrier(8)
        letter = write(opened(store, engine))

        def replay(_: int) -> Any:
            letters = opened(store, engine)
            begun.wait(20)
            return letters.replay(which=DeadLetterFilter())

        with ThreadPoolExecutor(8) as pool:
            ended = list(pool.map(replay, range(8)))

        assert engine.sent == [letter]
        assert sum(each.done for each in ended) == 1

    def test_a_letter_is_neither_sent_nor_discarded_while_another_caller_sends_it(
        self, letters, store
    ):
        other = opened(store, Engine())
        seen = []

        def meanwhile(letter: DeadLetterRecord) -> None:
            seen.append((other.replay(letter.id), other.discard(letter.id)))

        letters.send_with("celery", meanwhile, application="slow")
        other.send_with("celery", meanwhile, application="slow")
        letter = write(letters, application="slow")

        assert letters.replay(letter).done == 1
        assert seen == [((0, 1, ()), (0, 1, ()))]

    def test_a_letter_that_the_engine_refuses_can_be_sent_again_at_once(self, letters, engine):
        letter = write(letters)
        engine.refuses[letter] = ConnectionError("the broker is away")

        with pytest.raises(LetterNotSent, match="ConnectionError: the broker is away") as caught:
            letters.replay(letter)
        engine.refuses.clear()

        assert [each.letter_id for each in caught.value.ended.unsent] == [letter]
        assert letters.replay(letter).done == 1

    def test_a_letter_whose_sender_died_can_be_sent_again_after_a_minute(
        self, letters, store, clock, engine
    ):
        letter = write(letters)
        is_dead = threading.Event()

        def killed(_letter: DeadLetterRecord) -> None:
            is_dead.set()
            raise Died

        def ledger() -> Any:
            if is_dead.is_set():
                raise Died
            return store

        other = GuardDeadLetters(ledger, "")
        other.send_with("celery", killed, application="shop")
        with pytest.raises(Died):
            other.replay(letter)

        assert letters.replay(letter) == (0, 1, ()), "the sender may still be alive"
        clock.advance(DEAD_LETTER_LEASE_SECONDS)

        assert letters.replay(letter) == (1, 0, ())
        assert engine.sent == [letter]

    def test_a_letter_that_cannot_be_sent_does_not_stop_the_others(self, letters, engine):
        written = [write(letters) for _ in range(3)]
        engine.refuses[written[1]] = PayloadError("$", "it is damaged")

        ended = letters.replay(which=DeadLetterFilter())

        assert (ended.done, ended.skipped) == (2, 0)
        ((letter_id, engine_name, problem, elsewhere),) = ended.unsent
        assert (letter_id, engine_name, elsewhere) == (written[1], "celery", False)
        assert "it is damaged" in problem
        assert [letter.id for letter in letters.list()] == [written[1]]

    def test_a_replay_by_id_sends_the_other_letters_before_it_raises(self, letters, engine):
        written = [write(letters) for _ in range(3)]
        engine.refuses[written[0]] = ValueError("no")

        with pytest.raises(LetterNotSent, match="2 were sent"):
            letters.replay(written)

        assert engine.sent == written[1:]

    def test_a_replay_stops_after_too_many_refusals_of_the_engine(self, letters, engine):
        written = [write(letters) for _ in range(DEAD_LETTER_RETRY_FAILURES + 2)]
        engine.refuses = dict.fromkeys(written, ConnectionError("away"))

        with pytest.raises(LetterNotSent) as caught:
            letters.replay(which=DeadLetterFilter())

        assert len(caught.value.ended.unsent) == DEAD_LETTER_RETRY_FAILURES
        assert len(letters.list()) == len(written)

    def test_each_letter_is_sent_by_its_own_application(self, letters, engine):
        other = Engine()
        letters.send_with("celery", other.send, application="bank")
        of_shop, of_bank = write(letters), write(letters, application="bank")
        of_unknown = write(letters, application="gone")

        ended = letters.replay(which=DeadLetterFilter())

        assert (engine.sent, other.sent) == ([of_shop], [of_bank])
        ((letter_id, _, problem, elsewhere),) = ended.unsent
        assert (letter_id, elsewhere) == (of_unknown, True)
        assert "'gone' of celery is not known here" in problem

    def test_a_letter_is_not_sent_if_two_applications_have_its_name(self, letters, engine):
        letters.send_with("celery", engine.send, application="shop")
        letter = write(letters)
        letters.send_with("celery", Engine().send, application="shop")

        with pytest.raises(LetterNotSent, match="give each its own name"):
            letters.replay(letter)

    def test_a_namespace_has_its_own_letters(self, store, engine):
        ours, theirs = opened(store, engine, "eu"), opened(store, engine, "us")
        letter = write(ours)

        assert theirs.list() == []
        assert theirs.groups(DeadLetterFilter()) == []
        assert theirs.replay(which=DeadLetterFilter()) == (0, 0, ())
        with pytest.raises(LetterNotFound):
            theirs.discard(letter)
        assert ours.get(letter).namespace == "eu"
        assert [each.id for each in GuardDeadLetters(lambda: store).list()] == [letter]

    def test_a_discarded_letter_has_its_actor_and_reason(self, letters, engine):
        letter = write(letters)

        assert letters.discard(letter, actor="ann", reason="a test") == (1, 0, ())
        assert letters.discard(letter) == (0, 1, ())

        ended = letters.get(letter)
        assert (ended.state, ended.actor, ended.reason) == ("discarded", "ann", "a test")
        assert engine.sent == []

    def test_a_rate_and_a_reason_are_checked(self, letters):
        with pytest.raises(BadOption, match="rate"):
            letters.replay("1", rate=0)
        with pytest.raises(BadOption, match="reason"):
            letters.discard("1", reason="x" * 2_000)
