"""Someone who types the names of another task library is told the names of duly."""

import pytest

from duly import Duly
from duly.core.foreign_names import METHODS, OPTIONS
from duly.task import Task
from duly.task_options import define

pytestmark = pytest.mark.stores("sqlite-wal")


@pytest.fixture
def send(app: Duly) -> Task[[], None]:
    """A task."""

    @app.task(name="send")
    def send() -> None: ...

    return send


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("delay", r"use \.enqueue\(…\)"),
        ("apply_async", r"use \.using\(…\)\.enqueue\(…\)"),
        ("send", r"use \.enqueue\(…\)"),
        ("defer", r"use \.enqueue\(…\)"),
    ],
)
def test_a_method_of_another_library_names_the_method_of_duly(send, name, hint):
    with pytest.raises(AttributeError, match=f"a task of duly has no '{name}'; {hint}"):
        getattr(send, name)

    assert not hasattr(send, name)


def test_any_other_attribute_raises_the_usual_error(send):
    with pytest.raises(AttributeError, match=r"^'Task' object has no attribute 'nothing'"):
        send.nothing  # noqa: B018 - the look-up is the test


def test_no_hint_hides_a_name_of_duly():
    own_options = {*(Task.using.__kwdefaults__ or ()), *(define.__kwdefaults__ or ())}

    assert own_options.isdisjoint(OPTIONS)
    assert not [name for name in METHODS if name in vars(Task)]
