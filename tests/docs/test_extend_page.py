"""`duly.extend` stays small and public, and every name in it has a section and an example."""

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest

import duly
from duly import errors, extend
from duly.core.states import State
from tests.docs.pages import DOCS, ROOT, blocks

PAGE = DOCS / "how-to" / "extending.md"
EXAMPLES = {
    name: ROOT / "examples" / f"{name}.py"
    for name in ("folder_queue", "own_migrations", "plugin_host")
}
MOST_NAMES = 15


def test_the_contract_has_at_most_15_names():
    assert len(set(extend.__all__)) == len(extend.__all__) <= MOST_NAMES


PUBLIC = {
    *(getattr(duly, name) for name in duly.__all__),
    *(getattr(extend, name) for name in extend.__all__),
    *(value for value in vars(errors).values() if inspect.isclass(value)),
    State,  # the type of Run.state
}
MADE_BY_DULY = {"EmbeddedWorker"}
"""Classes whose constructors are not for users."""


@pytest.mark.parametrize("name", extend.__all__)
def test_the_signature_of_a_name_has_only_public_types(name):
    named = [part for hint in hints_of(getattr(extend, name)) for part in parts_of(hint)]
    ours = {kind for kind in named if inspect.isclass(kind) and kind.__module__.startswith("duly")}

    assert ours - PUBLIC == set()


def hints_of(promised: Any) -> Iterator[Any]:
    """Yield the type of every parameter, result and attribute that users see."""
    yield from get_type_hints(promised).values()
    if not inspect.isclass(promised):
        return
    for member, value in vars(promised).items():
        is_public = not member.startswith("_")
        if is_public or (member == "__init__" and promised.__name__ not in MADE_BY_DULY):
            function = value.fget if isinstance(value, property) else value
            if inspect.isfunction(function):
                yield from get_type_hints(function).values()


def parts_of(hint: Any) -> Iterator[Any]:
    """Yield a type and the types inside it, such as those of the items of a list."""
    if isinstance(hint, list):
        for part in hint:
            yield from parts_of(part)
        return
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)


def test_each_name_has_a_section_of_its_own():
    sections = re.findall(r"^### `(\w+)`$", PAGE.read_text(), re.MULTILINE)

    assert sorted(sections) == sorted(extend.__all__)


@pytest.mark.parametrize("name", extend.__all__)
def test_each_name_is_used_by_the_page_and_by_an_example(name):
    page = "\n".join(block.text for block in blocks(PAGE) if block.kind == "python")
    examples = "\n".join(file.read_text() for file in EXAMPLES.values())

    # Once in the import and at least once after it.
    assert len(re.findall(rf"\b{name}\b", page)) > 1
    assert len(re.findall(rf"\b{name}\b", examples)) > 1


@pytest.mark.process
@pytest.mark.stores("sqlite")
@pytest.mark.parametrize(
    ("example", "printed"),
    [
        (
            "folder_queue",
            {"order 1 is on its way", "order 2 is on its way", "order 3 is on its way"},
        ),
        ("own_migrations", {"0 runs"}),
        ("plugin_host", {"tree.png is small now", "tasks.resize.returned:1|c"}),
    ],
)
def test_an_example_runs(example, printed, store_url, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{example}", str(tmp_path / "messages")],
        cwd=ROOT,
        env=os.environ | {"DULY_URL": store_url},
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert done.returncode == 0, done.stderr
    assert printed <= set(done.stdout.splitlines())
