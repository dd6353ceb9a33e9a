"""Rules for the functions that carry out ops."""

import inspect
from importlib import import_module
from pkgutil import iter_modules

from duly.store import ops, verbs
from duly.store.ops.op import FACTS
from duly.store.verbs.verb import _VERBS

for module in iter_modules(ops.__path__, "duly.store.ops."):
    import_module(module.name)
for module in iter_modules(verbs.__path__, "duly.store.verbs."):
    import_module(module.name)


def test_every_verb_takes_the_op_that_it_carries_out():
    wrong = [
        carry_out.__qualname__
        for kind, carry_out in _VERBS.items()
        if inspect.signature(carry_out).parameters["op"].annotation is not kind
    ]

    assert wrong == []


def test_every_verb_is_about_a_kind_of_op_with_facts():
    assert _VERBS.keys() - FACTS.keys() == set()


def test_an_op_and_its_verb_are_in_modules_of_the_same_name():
    apart = [
        kind.__name__
        for kind, carry_out in _VERBS.items()
        if kind.__module__.rpartition(".")[2] != carry_out.__module__.rpartition(".")[2]
    ]

    assert apart == []


def test_bodies_repeat_only_ops_that_change_nothing_when_they_are_written_again():
    repeatable = {kind.__name__ for kind, facts in FACTS.items() if facts.is_repeatable}

    enqueues, steps = {"Enqueue", "EnqueueAgain"}, {"BeginStep", "EndStep", "ForgetStep"}
    assert repeatable == enqueues | steps | {"SendEvent"}
