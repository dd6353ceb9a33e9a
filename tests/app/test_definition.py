"""The options that `@app.task` accepts, and the errors for invalid options."""

import asyncio
import copy
import functools
import pickle
import sys

import pytest

from duly import BadOption, Duly, DuplicateTask, Retry, Task, TaskNotRegistered


@pytest.fixture
def app(untouched: Duly) -> Duly:
    """An application that never opens its store: defining tasks needs none."""
    return untouched


def plain(number: int = 0) -> int:
    return number


async def coroutine(number: int = 0) -> int:
    return number


REFUSED = {
    "on_crash": ({"on_crash": "retry"}, 'on_crash must be "rerun" or "hold", not \'retry\''),
    "hold with retries": ({"on_crash": "hold", "retries": 3}, r"retries need Retry\(…, on="),
    "hold with Retry": ({"on_crash": "hold", "retries": Retry(1)}, r"retries need Retry\(…, on="),
    "negative retries": ({"retries": -1}, "retries must be a whole number of at least 0, not -1"),
    "retries as text": ({"retries": "3"}, "retries must be a whole number"),
    "retries as a flag": ({"retries": True}, "retries must be a whole number"),
    "fractional retries": ({"retries": 1.5}, "retries must be a whole number"),
    "no timeout at all": ({"timeout": 0}, "timeout must be above 0 seconds, not 0"),
    "negative timeout": ({"timeout": -2.5}, "timeout must be above 0 seconds, not -2.5"),
    "timeout NaN": ({"timeout": float("nan")}, "timeout must be above 0 seconds"),
    "timeout as text": ({"timeout": "60"}, "timeout must be above 0 seconds, not '60'"),
    "priority as text": ({"priority": "high"}, "priority must be a whole number"),
    "priority too high": ({"priority": 1_000_001}, "priority must be a whole number within"),
    "empty queue": ({"queue": ""}, "queue must have 1 to 255 bytes"),
    "queue with a blank": ({"queue": "my mail"}, "must not contain blanks"),
    "queue with a comma": ({"queue": "a,b"}, "must not contain blanks, commas"),
    "queue like an option": ({"queue": "-q"}, "queue '-q' must not begin with '-'"),
    "queue that is no text": ({"queue": 7}, "queue must be a string, not int"),
    "name with a blank": ({"name": "send mail"}, "task name 'send mail' must not contain blanks"),
    "name too long": ({"name": "n" * 256}, "task name must have 1 to 255 bytes"),
    "executor": ({"executor": "greenlet"}, 'executor must be "loop", "thread" or "process"'),
    "def on the loop": ({"executor": "loop"}, "async def runs on the loop, def on threads"),
    "transaction in a process": (
        {"transaction": True, "executor": "process"},
        "transaction=True needs a plain def task",
    ),
    "unique": ({"unique": "always"}, 'unique must be "run" or "active", not \'always\''),
    "negative expires": ({"expires": -1}, "expires must be from 0 to"),
    "expires as text": ({"expires": "1h"}, "expires must be a number of seconds"),
    "negative key_ttl": ({"key_ttl": -1}, "key_ttl must be from 0 to"),
    "key_ttl as text": ({"key_ttl": "1d"}, "key_ttl must be a number of seconds"),
    "key_ttl NaN": ({"key_ttl": float("nan")}, "key_ttl must be from 0 to"),
    "alias with a blank": ({"aliases": ("old name",)}, "alias 'old name' must not contain blanks"),
    "aliases as one text": ({"aliases": "old:name"}, "aliases must be a tuple of strings"),
    "redact unknown": ({"redact": ("token",)}, "has no parameter 'token' to redact"),
    "redact as one text": ({"redact": "number"}, "redact must be a tuple of strings"),
    "unknown option": (
        {"retrys": 3},
        "no option 'retrys'; did you mean retries=\\?; the options are .*retries",
    ),
    "option of Celery": ({"max_retries": 3}, "there is no option 'max_retries'; use retries="),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_option_is_refused_at_definition(app, case):
    options, message = REFUSED[case]

    with pytest.raises(BadOption, match=message):
        app.task(**options)(plain)

    assert app.registry.names() == ()


def test_a_coroutine_function_cannot_run_on_threads(app):
    with pytest.raises(BadOption, match="async def runs on the loop, def on threads"):
        app.task(executor="thread")(coroutine)


def test_a_coroutine_function_cannot_be_transactional(app):
    with pytest.raises(BadOption, match=r"plain def task.*await duly\.astep.*transaction=True"):
        app.task(transaction=True)(coroutine)


@pytest.mark.parametrize("function", ["send", 5, None, ...])
def test_a_value_that_is_not_a_function_is_refused(app, function):
    with pytest.raises(BadOption, match=r"@app\.task"):
        app.task()(function)

    assert app.registry.names() == ()


def test_a_name_passed_by_position_is_refused_with_a_hint(app):
    with pytest.raises(BadOption, match=r"@app\.task\(name="):
        app.task("send")


def test_a_task_with_hold_may_retry_the_errors_that_its_policy_names(app):
    task = app.task(on_crash="hold", retries=Retry(2, on=(ConnectionError,)))(plain)

    assert task.definition.hold
    assert task.definition.retry.limit == 2


def test_executors_follow_from_the_kind_of_function(app):
    tasks = [
        app.task(name="a")(plain),
        app.task(name="b")(coroutine),
        app.task(name="c", executor="process")(plain),
        app.task(name="d", executor="process")(coroutine),
    ]

    assert [t.definition.executor for t in tasks] == ["thread", "loop", "process", "process"]


def test_the_decorator_works_with_and_without_options(app):
    bare = app.task(plain)
    optioned = app.task(name="other", queue="mail")(plain)

    assert isinstance(bare, Task)
    assert (bare.name, bare.definition.queue) == (f"{__name__}:plain", "default")
    assert (optioned.name, optioned.definition.queue) == ("other", "mail")


def test_the_error_for_two_tasks_with_one_name_shows_both_places(app):
    app.task(name="shop:send")(plain)

    with pytest.raises(DuplicateTask, match=r"'shop:send' is defined twice") as caught:
        app.task(name="shop:send")(coroutine)

    code, other = plain.__code__, coroutine.__code__
    assert f"{code.co_filename}:{code.co_firstlineno}" in str(caught.value)
    assert f"{other.co_filename}:{other.co_firstlineno}" in str(caught.value)
    assert app.registry.get("shop:send").function is plain


def test_an_alias_that_is_another_tasks_name_is_refused_and_registers_nothing(app):
    app.task(name="old")(plain)

    with pytest.raises(DuplicateTask, match="'old'"):
        app.task(name="new", aliases=("old",))(coroutine)

    assert app.registry.names() == ("old",)


def test_an_alias_names_the_same_definition(app):
    task = app.task(name="new", aliases=("old:name", "older:name"))(plain)

    found = {app.registry.get(name) for name in ("new", "old:name", "older:name")}

    assert found == {task.definition}
    assert app.registry.definitions() == (task.definition,)


def test_the_error_for_an_unknown_name_lists_the_known_names(app):
    app.task(name="shop:send")(plain)

    with pytest.raises(
        TaskNotRegistered, match=r"'shop:bill' is unknown here; known tasks: shop:send"
    ):
        app.registry.get("shop:bill")


def test_a_plain_call_runs_the_plain_function(app):
    task = app.task(plain)

    assert task(7) == 7


def test_a_plain_call_of_a_coroutine_function_returns_its_coroutine(app):
    task = app.task(coroutine)

    assert asyncio.run(task(7)) == 7


def test_a_task_is_pickled_and_copied_like_a_function(app, monkeypatch):
    task = app.task(plain)
    monkeypatch.setattr(sys.modules[__name__], "plain", task)

    assert pickle.loads(pickle.dumps({"task": task})) == {"task": task}  # noqa: S301 - its own
    assert copy.deepcopy([task]) == [task]


def test_a_task_looks_like_its_function(app):
    @app.task(name="documented")
    def documented(number: int) -> int:
        """Say something."""
        return number

    assert documented.__name__ == "documented"
    assert documented.__doc__ == "Say something."
    assert documented.__wrapped__(3) == 3
    assert functools.partial(documented, 3)() == 3


@pytest.mark.parametrize("name", ["current", "step", "Retry"])
def test_the_error_for_a_module_name_on_the_application_contains_a_hint(name):
    app = Duly("sqlite:///:memory:")

    assert not hasattr(app, name)
    with pytest.raises(AttributeError, match=rf"`import duly` gives duly\.{name}$"):
        getattr(app, name)


def test_an_unknown_attribute_raises_the_usual_error():
    with pytest.raises(AttributeError, match=r"^'Duly' object has no attribute 'curent'$"):
        _ = Duly("sqlite:///:memory:").curent


def test_a_property_that_fails_raises_its_own_error():
    class Broken(Duly):
        @property
        def store(self):
            raise AttributeError("the driver has no attribute 'connect'")

    with pytest.raises(AttributeError, match="the driver has no attribute"):
        _ = Broken("sqlite:///:memory:").store
