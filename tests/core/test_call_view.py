"""Calls are shown without secrets, and hidden where it is unknown which values are secret."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from duly.core.call_view import CallView
from duly.core.payload import CallCodec


def charge(order: int, card: str = "") -> None: ...


CODEC = CallCodec(charge, redact=("card",))


class Tasks:
    """One registered task, `charge`."""

    def find(self, name: str) -> Any:
        """Return the task, or None for another name."""
        return SimpleNamespace(codec=CODEC) if name == "charge" else None


def run_of(arguments: str, task: str = "charge", result: str | None = None) -> Any:
    return SimpleNamespace(task=task, arguments=arguments, result=result)


CALL = CODEC.encode((7, "4111-2222"), {})
SHOWN = [[], {"order": 7, "card": "***"}]
NAMED = '[[],{"order":7,"password":"4111-2222"}]'
MISFIT = '[[],{"account":"4111-2222"}]'


@pytest.mark.parametrize(
    ("options", "run", "shown"),
    [
        ({}, run_of(CALL), SHOWN),
        ({"hides_all": True}, run_of(CALL), None),
        ({}, run_of(CALL, task="other"), None),
        ({"shows_unregistered": True}, run_of(CALL), SHOWN),
        (
            {"shows_unregistered": True},
            run_of(NAMED, task="other"),
            [[], {"order": 7, "password": "***"}],
        ),
        ({}, run_of(MISFIT), None),
        ({"shows_unregistered": True}, run_of(MISFIT), None),
    ],
)
def test_arguments_are_shown_only_if_their_secrets_are_known(options, run, shown):
    found = CallView(Tasks(), **options).arguments(run)

    assert (None if found is None else json.loads(found)) == shown


@pytest.mark.parametrize(
    ("options", "task", "result", "shown"),
    [
        ({}, "charge", '"paid with 4111-2222"', '"paid with ***"'),
        ({}, "charge", None, "null"),
        ({}, "other", None, "null"),
        ({}, "other", '{"token": 1}', None),
        ({"shows_unregistered": True}, "other", '{"token": 1}', '{"token": "***"}'),
        ({"hides_all": True}, "charge", None, None),
    ],
)
def test_results_and_results_of_steps_are_shown_by_the_same_rules(options, task, result, shown):
    view, run = CallView(Tasks(), **options), run_of(CALL, task, result)

    found = view.result(run), view.step_result(run, SimpleNamespace(result=result))  # type: ignore[arg-type] # only the field that it reads

    assert found == (shown, shown)


@pytest.mark.parametrize(
    ("run", "has_secrets"),
    [
        (run_of(CODEC.encode((7,), {})), False),
        (run_of(CALL), True),
        (run_of(MISFIT), True),
        (run_of(CODEC.encode((7,), {}), task="other"), True),
    ],
)
def test_a_call_that_is_not_shown_in_full_has_secrets(run, has_secrets):
    assert CallView(Tasks()).has_secrets(run) is has_secrets
