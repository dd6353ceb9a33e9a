"""Statements name the schema of PostgreSQL's functions, so that no overload is called instead.

The conformance suite runs with decoys, which show that the types of all operators fit exactly.
"""

import re

import psycopg
import pytest

from tests.servers.kinds import POSTGRES_KINDS
from tests.store.decoys import postgres_sql

pytestmark = pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS)

_COMMENT_OR_TEXT = re.compile(r"--[^\n]*|'(?:[^']|'')*'")
_CALL = re.compile(r"(?<![\w.])(?<!AS )([a-z_]\w*)\((?![\w, ]+\) AS\b)")
_OF_THE_GRAMMAR = {"coalesce", "extract", "greatest", "least", "nullif", "unnest"}
"""The parser itself defines these; `unnest` of several arrays is one of them."""


def test_every_call_of_a_function_names_its_schema(url, postgres_kind):
    with psycopg.connect(url) as connection:
        known = {name for (name,) in connection.execute("SELECT proname FROM pg_proc")}

    unnamed = {
        path.name: found
        for path in postgres_sql()
        if (found := sorted(calls_of(path.read_text()) & known - _OF_THE_GRAMMAR))
    }

    assert unnamed == {}


def test_no_function_resolves_names_by_the_search_path_of_its_caller(store, connection):
    """Bodies of standard SQL are bound when they are created, and those of PL/pgSQL when they run.

    With a search path of its own, a function in SQL could not be inlined.
    """
    found = connection.execute(
        """
        SELECT proname, lanname, prosqlbody IS NOT NULL, proconfig, pronamespace::regnamespace::text
          FROM pg_proc JOIN pg_language ON pg_language.oid = prolang
         WHERE proname LIKE 'duly\\_%'
        """
    ).fetchall()

    assert {language for _, language, *_ in found} == {"sql", "plpgsql"}
    for name, language, is_bound, settings, schema in found:
        paths = [setting for setting in settings or () if setting.startswith("search_path=")]
        wanted = [f"search_path={schema}, pg_temp"] if language == "plpgsql" else []
        assert (name, is_bound, paths) == (name, language == "sql", wanted)


def calls_of(text: str) -> set[str]:
    """Return the functions that a file calls without a schema."""
    return set(_CALL.findall(_COMMENT_OR_TEXT.sub("''", text)))
