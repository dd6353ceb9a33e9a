"""Statements call PostgreSQL's functions by their schema, so that no overload is called instead.

That their operators fit exactly is shown by the decoys among which the conformance suite runs.
"""

import re
from importlib.resources import files

import psycopg
import pytest

from tests.servers.kinds import POSTGRES_KINDS

pytestmark = pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS)

_COMMENT_OR_TEXT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
_CALL = re.compile(r"(?<![\w.])(?<!AS )([a-z_]\w*)\((?![\w, ]+\) AS\b)")
_OF_THE_GRAMMAR = {"coalesce", "extract", "greatest", "least", "nullif", "unnest"}
"""The parser knows these by itself; `unnest` of several arrays is one of them."""


def test_every_call_of_a_function_names_its_schema(url, postgres_kind):
    with psycopg.connect(url) as connection:
        known = {name for (name,) in connection.execute("SELECT proname FROM pg_proc")}

    unnamed = {
        path.name: found
        for folder in ("sql", "migrations")
        for path in files("duly.store.postgres").joinpath(folder).iterdir()
        if path.name.endswith(".sql")
        and (found := sorted(calls_of(path.read_text()) & known - _OF_THE_GRAMMAR))
    }

    assert unnamed == {}


def calls_of(text: str) -> set[str]:
    """Return the functions that a file calls without a schema."""
    return set(_CALL.findall(_COMMENT_OR_TEXT.sub("''", text)))
