"""An invalid call raises a typed error with the reason, and writes nothing."""

import asyncio
import enum
from datetime import UTC, date, datetime, timedelta

import pytest

from duly import BadArguments, BadOption, Duly, DulyError, PayloadError, RunNotFound


class Colour(enum.Enum):
    """A class that no annotation of the task mentions."""

    RED = 1


def deep(levels: int) -> list:
    """Return a list in a list in a list."""
    value: list = []
    for _ in range(levels):
        value = [value]
    return value


def circular() -> list:
    """Return a list that contains itself."""
    value: list = []
    value.append(value)
    return value


@pytest.fixture
def app(untouched: Duly) -> Duly:
    """An application whose store is never opened, because each call is refused."""
    return untouched


@pytest.fixture
def send(app: Duly):
    """A task that is called with invalid arguments."""

    @app.task(name="send")
    def send(to, amount=1, *, note=""):
        return to, amount, note

    return send


OPTIONS = {
    "unknown option": (
        {"dealy": 3},
        "no option 'dealy'; did you mean delay=\\?; the options are .*delay",
    ),
    "option of Celery": ({"countdown": 3}, "there is no option 'countdown'; use delay= with"),
    "another option of Celery": ({"eta": 3}, "there is no option 'eta'; use at= with a datetime"),
    "naive at": ({"at": datetime(2030, 1, 1)}, "at=2030-01-01T00:00:00 has no time zone"),  # noqa: DTZ001
    "at as a date": ({"at": date(2030, 1, 1)}, "at must be a datetime"),
    "at as text": ({"at": "2030-01-01T00:00:00Z"}, "at must be a datetime"),
    "negative delay": ({"delay": -1}, "delay must be from 0 to"),
    "negative timedelta": ({"delay": timedelta(seconds=-1)}, "delay must be from 0 to"),
    "huge delay": ({"delay": 10**12}, "delay must be from 0 to 315360000 seconds"),
    "endless delay": ({"delay": float("inf")}, "delay must be from 0 to"),
    "delay NaN": ({"delay": float("nan")}, "delay must be from 0 to"),
    "delay as text": ({"delay": "5"}, "delay must be a number of seconds"),
    "delay as a flag": ({"delay": True}, "delay must be a number of seconds"),
    "both at and delay": (
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5},
        "delay= or at=, not both",
    ),
    "delay 0 and at": (
        {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 0},
        "delay= or at=, not both",
    ),
    "empty key": ({"key": ""}, "key must have 1 to 255 bytes"),
    "long key": ({"key": "k" * 256}, "key must have 1 to 255 bytes in UTF-8, not 256"),
    "long key in UTF-8": ({"key": "ü" * 128}, "key must have 1 to 255 bytes in UTF-8, not 256"),
    "key with NUL": ({"key": "a\0b"}, "contains a NUL character"),
    "key with a surrogate": ({"key": "\ud800"}, "contains a lone surrogate"),
    "key that is no text": ({"key": 42}, "key must be a string, not int"),
    "key as bytes": ({"key": b"order"}, "key must be a string, not bytes"),
    "unique": ({"key": "a", "unique": "ever"}, 'unique must be "run" or "active"'),
    "empty queue": ({"queue": ""}, "queue must have 1 to 255 bytes"),
    "queue with a newline": ({"queue": "a\nb"}, "must not contain blanks, commas or control"),
    "queue like an option": ({"queue": "-q"}, "queue '-q' must not begin with '-'"),
    "queue with NUL": ({"queue": "a\0"}, "contains a NUL character"),
    "queue that is no text": ({"queue": ["mail"]}, "queue must be a string, not list"),
    "priority as a float": ({"priority": 1.0}, "priority must be a whole number"),
    "priority as a flag": ({"priority": True}, "priority must be a whole number"),
    "priority too low": ({"priority": -1_000_001}, "priority must be a whole number within"),
    "tags as a list": ({"tags": ["tenant"]}, "tags must be a dict"),
    "tags as text": ({"tags": "tenant=x"}, "tags must be a dict"),
    "tag value that is no text": ({"tags": {"tenant": 7}}, "tag 'tenant': names and values"),
    "tag name that is no text": ({"tags": {7: "x"}}, "names and values must be strings"),
    "tag without a name": ({"tags": {"": "x"}}, "a tag needs a name"),
    "tag with NUL": ({"tags": {"tenant": "\0"}}, "contains a NUL character"),
    "long tag": ({"tags": {"tenant": "x" * 256}}, "at most 255"),
    "too many tags": ({"tags": {f"t{n}": "x" for n in range(33)}}, "at most 32 tags, not 33"),
    "negative expires": ({"expires": -0.1}, "expires must be from 0 to"),
    "expires as text": ({"expires": "soon"}, "expires must be a number of seconds"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_an_invalid_option_of_a_call_is_refused(send, case):
    options, message = OPTIONS[case]

    with pytest.raises(BadOption, match=message):
        send.using(**options)


ARGUMENTS = {
    "too few": ((), {}, "missing a required argument: 'to'"),
    "too many": ((1, 2, 3), {}, "too many positional arguments"),
    "unknown name": ((1,), {"subject": "x"}, "unexpected keyword argument 'subject'"),
    "given twice": ((1,), {"to": 2}, "multiple values for argument 'to'"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_do_not_fit_the_signature_are_refused(send, case):
    args, kwargs, message = ARGUMENTS[case]

    for act in (send.enqueue, send.call, send.using(key="k").enqueue):
        with pytest.raises(BadArguments, match=message):
            act(*args, **kwargs)
    with pytest.raises(TypeError):
        asyncio.run(send.aenqueue(*args, **kwargs))


PAYLOADS = {
    "an object": (object(), "to: "),
    "a function": (print, "to: "),
    "a class": (int, "to: "),
    "an exception": (ValueError("x"), "to: "),
    "an enum that no annotation names": (Colour.RED, "to: "),
    "a generator": ((n for n in ()), "to: "),
    "NaN": (float("nan"), "to: "),
    "infinity": ([1.0, float("-inf")], r"to\[1\]: "),
    "an int of 65 bits": (2**63, "to: "),
    "a NUL": ("a\0b", "to: "),
    "a surrogate": ({"name": "\udcff"}, "to"),
    "a key that is no text": ({1: "x"}, "to"),
    "a complex number": (1j, "to: "),
    "too deep": (deep(70), "to"),
    "circular": (circular(), "to"),
    "too large": ("x" * (256 * 1024), "to: takes more than the 262144 bytes"),
    "too large in UTF-8": ("ü" * (128 * 1024), "to: "),
}


@pytest.mark.parametrize("case", PAYLOADS)
def test_the_error_for_a_value_that_cannot_be_stored_names_the_argument(send, case):
    value, message = PAYLOADS[case]

    for act in (send.enqueue, send.call, send.using(key="k").enqueue):
        with pytest.raises(PayloadError, match=message):
            act(value)
    with pytest.raises(TypeError):
        asyncio.run(send.aenqueue(value))


def test_the_largest_value_that_fits_is_accepted(send):
    room = 256 * 1024 - len('[[],{"to":""}]')

    send.call("x" * room)

    with pytest.raises(PayloadError):
        send.call("x" * (room + 1))


def test_one_bad_call_prevents_its_whole_batch_from_being_stored(app, send):
    def calls():
        yield send.call(1)
        yield send.call(object())

    with pytest.raises(PayloadError):
        app.enqueue_many(calls())


def test_a_priority_at_the_bound_is_accepted(send):
    assert send.using(priority=1_000_000).call(1).op.priority == 1_000_000
    assert send.using(priority=-1_000_000).call(1).op.priority == -1_000_000


class TestTextThatNoDatabaseAccepts:
    """The reasons, actors and filters of operators also reach the database."""

    @pytest.fixture
    def app(self, store_url):
        """An application on every kind of store: they must agree."""
        app = Duly(store_url)
        yield app
        app.close()

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 1001], ids=["NUL", "lone", "long"])
    def test_an_operator_action_with_an_invalid_reason_is_refused_and_changes_nothing(
        self, app, send, text
    ):
        run = send.enqueue(1)

        for act in (
            lambda: run.cancel(reason=text),
            lambda: run.retry(reason=text),
            lambda: app.dead.retry(run.id, reason=text),
            lambda: app.dead.discard(run.id, reason=text),
            lambda: app.queues.pause("default", reason=text),
        ):
            with pytest.raises(BadOption, match="reason"):
                act()

        assert run.refresh().state == "queued"
        assert not any(queue.paused for queue in app.queues.list())
        assert app.store.list_audit_entries(None, 10) == []

    @pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "lone surrogate"])
    def test_an_operator_action_with_an_invalid_actor_is_refused_and_changes_nothing(
        self, app, send, text
    ):
        run = send.using(key="k").enqueue(1)

        for act in (
            lambda: run.cancel(actor=text),
            lambda: app.queues.pause("default", actor=text),
            lambda: app.reset_key(send, "k", actor=text),
        ):
            with pytest.raises(BadOption, match="actor"):
                act()

        assert run.refresh().state == "queued"
        assert app.store.list_audit_entries(None, 10) == []

    @pytest.mark.parametrize("run_id", ["", "nonsense", "a\0b", "\ud800", "0" * 36, "é" * 400])
    def test_an_invalid_id_finds_no_run(self, app, send, run_id):
        send.enqueue(1)

        for act in (app.runs.get, app.runs.cancel, app.runs.retry, app.dead.retry):
            with pytest.raises(RunNotFound):
                act(run_id)

    @pytest.mark.parametrize("text", ["a\0b", "\ud800"], ids=["NUL", "lone surrogate"])
    def test_a_filter_with_invalid_text_raises_a_typed_error_or_finds_nothing(
        self, app, send, text
    ):
        send.enqueue(1)

        for which in (
            {"task": text},
            {"queue": text},
            {"tag": ("name", text)},
            {"fingerprint": text},
            {"cursor": text},
        ):
            try:
                found = app.runs.list(**which)
            except DulyError:
                continue
            assert found == [], which
