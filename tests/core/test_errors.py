"""Errors say what happened wherever they are raised again."""

import inspect
import pickle
from types import WrapperDescriptorType

import pytest

from duly import errors

CLASSES = [
    found
    for found in vars(errors).values()
    if inspect.isclass(found) and issubclass(found, errors.DulyError)
]


def example(kind: type[errors.DulyError]) -> errors.DulyError:
    """Make one, of whatever it is made of."""
    if isinstance(kind.__init__, WrapperDescriptorType):  # One of Python's own.
        return kind("some message")
    taken = inspect.signature(kind).parameters.values()
    values = {"float": 1.5, "int": 7, "float | None": 1.5}
    return kind(
        *(
            values.get(inspect.formatannotation(parameter.annotation), f"some {parameter.name}")
            for parameter in taken
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        )
    )


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_survives_pickling_with_all_it_says(kind):
    error = example(kind)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own

    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
