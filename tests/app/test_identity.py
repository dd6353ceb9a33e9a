"""A name has one function: a second definition is refused unless it is the same function."""

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import pytest

from duly import Duly
from duly.errors import BadOption, DuplicateTask


def logged(function: Callable[[int], str]) -> Callable[[int], str]:
    """A decorator without functools.wraps: all its functions have the same line in this file."""

    def wrapper(number: int) -> str:
        return function(number)

    return wrapper


def adding(amount: int) -> Callable[[Callable[[int], int]], Callable[[int], int]]:
    """A decorator with functools.wraps: its functions differ only in their captured variables."""

    def decorate(function: Callable[[int], int]) -> Callable[[int], int]:
        @functools.wraps(function)
        def wrapper(number: int) -> int:
            return function(number) + amount

        return wrapper

    return decorate


def charge(number: int) -> str:
    """Return a text for a charge."""
    return f"charged {number}"


def refund(number: int) -> str:
    """Return a text for a refund."""
    return f"refunded {number}"


def count(number: int) -> int:
    """Return the number."""
    return number


class Shop:
    """A class whose method returns a different result for each shop."""

    def __init__(self, city: str) -> None:
        self.city = city

    def sell(self, number: int) -> str:
        """Sell something."""
        return f"sold {number} in {self.city}"

    @classmethod
    def make(cls) -> str:
        """Return the name of the class."""
        return cls.__name__


class Bakery(Shop):
    """A kind of shop."""


def made(body: str) -> Callable[[], str]:
    """Return a function created by `exec`, as in a library that generates code."""
    found: dict[str, Any] = {"__name__": __name__}
    exec(f"def sell():\n    {body}", found)  # noqa: S102 - the texts are above
    return found["sell"]


def test_functions_of_one_decorator_run_under_their_own_names(app):
    charging = app.task(name="charge")(logged(charge))
    refunding = app.task(name="refund")(logged(refund))

    charged, refunded = charging.enqueue(1), refunding.enqueue(2)
    app.worker().drain(timeout=20)

    assert (charged.result(), refunded.result()) == ("charged 1", "refunded 2")


@pytest.mark.parametrize(
    "functions",
    [
        (logged(charge), logged(refund)),
        (adding(1)(count), adding(2)(count)),
        (Shop("Rome").sell, Shop("Oslo").sell),
        (Shop.make, Bakery.make),
        ([].append, [].append),
        (lambda: "charged", lambda: "refunded"),
        (made("return 'charged'"), made("return 'refunded'")),
    ],
    ids=[
        "closures",
        "wrapped",
        "bound methods",
        "class methods",
        "built-in methods",
        "lambdas",
        "functions made by exec",
    ],
)
def test_a_second_function_of_the_same_line_is_refused(untouched, functions):
    first, second = functions
    untouched.task(name="sell")(first)

    with pytest.raises(DuplicateTask, match="'sell' is defined twice"):
        untouched.task(name="sell")(second)

    assert untouched.registry.get("sell").function == first


@pytest.fixture
def module(untouched, tmp_path, monkeypatch):
    """A module of tasks, one of them under a decorator without functools.wraps."""
    monkeypatch.setattr(sys.modules[__name__], "app_of_module", untouched, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "imported_twice.py"
    path.write_text(
        f"from {__name__} import adding, app_of_module as app, logged\n"
        "@app.task(name='plain')\n"
        "def plain(number): return number\n"
        "@app.task(name='logged')\n"
        "@logged\n"
        "def inner(number): return number\n"
        "@app.task(name='adding')\n"
        "@adding(1)\n"
        "def added(number): return number\n"
    )
    yield importlib.import_module("imported_twice")
    sys.modules.pop("imported_twice")


def test_a_module_may_be_imported_again(untouched, module):
    before = [untouched.registry.get(name).function for name in untouched.registry.names()]

    importlib.reload(module)

    after = [untouched.registry.get(name).function for name in untouched.registry.names()]
    assert all(old is not new for old, new in zip(before, after, strict=True))


def test_one_file_may_be_imported_under_two_names(untouched, module):
    path = module.__file__
    spec = importlib.util.spec_from_file_location("package.imported_twice", path)
    again = importlib.util.module_from_spec(spec)

    spec.loader.exec_module(again)

    assert untouched.registry.get("plain").function is again.plain.definition.function


def test_functions_that_capture_themselves_are_compared(untouched):
    def make(amount: int) -> Callable[[int], int]:
        def count_down(number: int) -> int:
            return count_down(number - 1) if number else amount

        return count_down

    untouched.task(name="count")(make(1))
    untouched.task(name="count")(make(1))

    with pytest.raises(DuplicateTask):
        untouched.task(name="count")(make(2))


def test_two_bound_methods_are_not_one_task(untouched):
    untouched.task(Shop("Rome").sell)

    with pytest.raises(DuplicateTask, match=r"Shop\.sell"):
        untouched.task(Shop("Oslo").sell)


def test_functions_that_differ_by_their_defaults_are_not_one_task(untouched):
    def make(amount: int) -> None:
        @untouched.task(name="add")
        def add(number: int = amount) -> int:
            return number

    make(1)
    make(1)

    with pytest.raises(DuplicateTask, match="'add'"):
        make(2)


def test_a_function_may_be_defined_again(untouched):
    sell = Shop("Rome").sell
    for function in (charge, sell, logged(charge)):
        untouched.task(name=f"again:{function.__name__}")(function)
        untouched.task(name=f"again:{function.__name__}", retries=2)(function)

    assert untouched.registry.get("again:sell").retry.limit == 2


@pytest.mark.parametrize("define", [Duly.task, lambda app, found: app.every(hours=1)(found)])
@pytest.mark.parametrize("function", [logged(charge), lambda: None], ids=["closure", "lambda"])
def test_a_function_inside_another_needs_a_name(untouched, define, function):
    with pytest.raises(BadOption, match=r"pass name=…, or define it at module level"):
        define(untouched, function)

    assert untouched.registry.names() == ()


def test_the_name_of_a_schedule_also_names_the_task_of_a_nested_function(untouched):
    @untouched.every(hours=1, name="hourly")
    def inside() -> None: ...

    assert inside.name == "hourly"
    assert untouched.schedules.is_defined("hourly")


def test_options_apply_when_the_function_is_passed_with_them(untouched):
    task = untouched.task(logged(charge), name="charge", retries=2)

    assert (task.name, task.definition.retry.limit) == ("charge", 2)
