"""Every promise has a test, and every test that the page names exists."""

import ast
import re
from functools import cache

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "explanation" / "guarantees.md").read_text()
README = (ROOT / "README.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[^`]+::[^`]+)`", PAGE)))
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "Tests" not in line]


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


def test_every_test_that_the_guarantees_name_exists():
    places = [named.split("::", 1) for named in NAMED]

    assert [place for place in places if place[1] not in names_in(place[0])] == []
    assert len(NAMED) > 50


def test_every_row_of_the_guarantees_names_a_test():
    assert [row for row in ROWS if "`tests/" not in row and "| the same |" not in row] == []


def test_every_promise_of_the_readme_is_among_the_guarantees():
    promise = README.partition("## What duly promises")[2].partition("\n## ")[0]
    sentences = re.findall(r"^\* \*\*(.+?)[.:]\*\*", promise, re.MULTILINE)
    effects = re.findall(r"^\| (.+?) \|", promise, re.MULTILINE)[1:]

    assert len(sentences) == 4
    assert len(effects) == 7
    assert [sentence for sentence in sentences if sentence not in PAGE] == []
    assert [effect for effect in effects if f"| {effect} |" not in PAGE] == []
