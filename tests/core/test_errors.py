"""Errors keep their content when another process raises them again."""

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
    """Return an example of an error, with values that fit its constructor."""
    if isinstance(kind.__init__, WrapperDescriptorType):  # A constructor of Python itself.
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
def test_a_pickled_error_keeps_its_message_and_attributes(kind):
    error = example(kind)

    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own

    assert type(again) is kind
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
