"""Every promise and every avoided failure has a test, and every named test exists."""

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import DOCS, ROOT

PAGES = {
    name: (DOCS / "explanation" / f"{name}.md").read_text() for name in ("guarantees", "failures")
}
TRACEABILITY = (DOCS / "explanation" / "traceability.md").read_text()
README = (ROOT / "README.md").read_text()

TESTED = dict(zip(PAGES, TRACEABILITY.split("\n## Failures of other designs\n"), strict=True))


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


def rows(page: str) -> list[str]:
    """Return the rows of all tables of a page, without their headers."""
    table = re.compile(r"^\|.+\|\n\|[-|]+\|\n((?:\|.+\|\n)+)", re.MULTILINE)
    return [row for found in table.finditer(page) for row in found[1].splitlines()]


def promises(page: str) -> list[str]:
    """Return the promises of a page: bold starts of list items and first cells of tables.

    The bold start of a first cell is its name. The last section lists what is not promised.
    """
    promising = page.partition("\n## What is not promised\n")[0]
    listed = re.findall(r"^\* \*\*(.+?)\.?\*\*", promising, re.MULTILINE)
    cells = [row.removeprefix("| ").split(" |")[0] for row in rows(promising)]
    return listed + [re.sub(r"^\*\*(.+?)\.?\*\*.*", r"\1", cell) for cell in cells]


@pytest.mark.parametrize("name", PAGES)
def test_every_promise_of_a_page_has_its_tests_in_the_traceability_table(name):
    promised = promises(PAGES[name])

    assert len(promised) > 25
    assert promised == promises(TESTED[name])


def test_every_row_of_the_traceability_table_names_a_test():
    assert [row for row in rows(TRACEABILITY) if "`tests/" not in row] == []


def test_every_test_that_the_traceability_table_names_exists():
    named = sorted(set(re.findall(r"`(tests/[^`]+::[^`]+)`", TRACEABILITY)))
    places = [name.split("::", 1) for name in named]

    assert [place for place in places if place[1] not in names_in(place[0])] == []
    assert len(named) > 150


def test_every_promise_of_the_readme_is_among_the_guarantees():
    highlights = README.partition("## Highlights\n\n")[2].partition("\n\n")[0].split("\n* ")
    names = {text: text.removeprefix("* ").split(".**")[0] for text in highlights}
    promises = [name for text, name in names.items() if "guarantees.md" in text]

    assert len(highlights) == 8
    assert len(promises) == 3
    assert [promise for promise in promises if f"{promise}." not in PAGES["guarantees"]] == []
