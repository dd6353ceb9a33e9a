"""Every promise, and every failure that is avoided, has a test, and every test named exists."""

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import DOCS, ROOT

PAGES = {
    name: (DOCS / "explanation" / f"{name}.md").read_text() for name in ("guarantees", "failures")
}
README = (ROOT / "README.md").read_text()

each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@cache
def names_in(file: str) -> set[str]:
    """Return the tests of a file as pytest names them: by function, or by class and method."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            found |= {f"{node.name}::{item.name}" for item in methods}
    return found


@each_page
def test_every_test_that_a_page_names_exists(page):
    named = sorted(set(re.findall(r"`(tests/[^`]+::[^`]+)`", page)))
    places = [name.split("::", 1) for name in named]

    assert [place for place in places if place[1] not in names_in(place[0])] == []
    assert len(named) > 50


@each_page
def test_every_row_of_a_page_names_a_test(page):
    rows = [line for line in page.splitlines() if line.startswith("| ") and "Tests" not in line]

    assert [row for row in rows if "`tests/" not in row and "| the same |" not in row] == []


def test_every_promise_of_the_readme_is_among_the_guarantees():
    highlights = README.partition("## Highlights\n\n")[2].partition("\n\n")[0].split("\n* ")
    names = {text: text.removeprefix("* ").split(".**")[0] for text in highlights}
    promises = [name for text, name in names.items() if "guarantees.md" in text]

    assert len(highlights) == 8
    assert len(promises) == 3
    assert [promise for promise in promises if f"{promise}." not in PAGES["guarantees"]] == []
