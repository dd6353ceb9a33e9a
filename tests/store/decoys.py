"""Functions and operators of another role that may create objects in duly's schema.

PostgreSQL calls the function whose argument types fit best, from any schema of the search path. So
if the arguments of a call have to be converted, a role that may create functions in one of these
schemas can take over the call. There is a decoy for each such call, which raises an error if it is
called.
"""

import re
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import duly.store

STRANGER = "stranger"
STORE = Path(str(duly.store.__file__)).parent

_OPERATORS = [
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "=",
    "<>",
    "<",
    ">",
    "<=",
    ">=",
    "&",
    "<<",
    "~~",
    "->>",
]
_TYPES = [
    *("smallint", "integer", "bigint", "numeric", "float8", "text", "varchar", "name", "oid"),
    *("timestamptz", "timestamp", "date", "interval", "uuid", "boolean", "json", "xid8"),
    *("text[]", "uuid[]", "bigint[]", "integer[]"),
]
_NEIGHBOURS = {
    "smallint": ["integer"],
    "integer": ["smallint", "bigint", "text"],
    "bigint": ["smallint", "integer", "text"],
    "double precision": ["bigint", "numeric"],
    "text": ["character varying", "name"],
    "text[]": ["character varying[]", "text"],
    "uuid": ["text"],
    "boolean": ["text"],
    "timestamp with time zone": ["timestamp without time zone", "date"],
    "anyarray": ["text[]", "uuid[]", "bigint[]"],
    "anycompatiblearray": ["text[]", "uuid[]"],
    "anyelement": ["text", "bigint"],
    "anycompatible": ["text", "uuid"],
    '"any"': ["text", "uuid", "bigint"],
}
_INEXACT_OPERATORS = """
WITH type AS (
    SELECT name, name::regtype::oid AS oid FROM pg_catalog.unnest(%(types)s::text[]) AS name
), fits AS (
    SELECT type.name, other.oid
      FROM type CROSS JOIN pg_type AS other
     WHERE type.oid = other.oid
        OR EXISTS (SELECT FROM pg_cast WHERE castsource = type.oid AND casttarget = other.oid
                                         AND castcontext = 'i')
        OR other.typname IN ('anyelement', 'anycompatible', 'anynonarray', 'anycompatiblenonarray')
        OR other.typname IN ('anyarray', 'anycompatiblearray') AND type.name LIKE '%%]'
)
SELECT DISTINCT oprname, l.name, r.name
  FROM pg_operator
  JOIN fits AS l ON l.oid = oprleft
  JOIN fits AS r ON r.oid = oprright
 WHERE oprname = ANY (%(operators)s) AND oprnamespace = 'pg_catalog'::regnamespace
   AND NOT EXISTS (SELECT FROM pg_operator AS exact
                    WHERE exact.oprname = pg_operator.oprname
                      AND exact.oprleft = l.name::regtype AND exact.oprright = r.name::regtype)
"""
_FUNCTIONS = """
SELECT pg_catalog.quote_ident(proname),
       ARRAY(SELECT pg_catalog.format_type(one, NULL)
               FROM pg_catalog.unnest(proargtypes) WITH ORDINALITY AS _(one, place)
              ORDER BY place),
       proowner <> 'stranger'::regrole
  FROM pg_proc
 WHERE pronargs > 0 AND (proname = ANY (%(names)s) OR proname::text LIKE 'duly%%')
"""
_FUNCTION = """
CREATE FUNCTION public.{name}({types}) RETURNS {answer} LANGUAGE plpgsql
AS $$ BEGIN RAISE 'a decoy was called: {shown}'; END $$
"""


def plant(url: str) -> None:
    """Create decoys of all functions and operators that duly calls, and of its own functions."""
    with psycopg.connect(url, prepare_threshold=None) as connection:
        connection.execute(
            "DO $$ BEGIN CREATE ROLE stranger; EXCEPTION WHEN duplicate_object THEN END $$"
        )
        connection.execute("GRANT CREATE, USAGE ON SCHEMA public TO stranger")
        statements = [*_operators(connection), *_functions(connection)]
        connection.execute("SET LOCAL ROLE stranger")
        if statements:
            connection.execute(sql.SQL(";").join(sql.SQL(each) for each in statements))


def _operators(connection: psycopg.Connection[Any]) -> list[str]:
    made = []
    known = {"types": _TYPES, "operators": _OPERATORS}
    for number, (sign, left, right) in enumerate(connection.execute(_INEXACT_OPERATORS, known)):
        answer = "boolean" if re.search("[=<>~]", sign) else left
        shown = f"{left} {sign} {right}".replace("%", "%%")
        name = f"decoy_{number}"
        types = f"{left}, {right}"
        made.append(_FUNCTION.format(name=name, types=types, answer=answer, shown=shown))
        made.append(
            f"CREATE OPERATOR public.{sign}"
            f" (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{name})"
        )
    return made


def _functions(connection: psycopg.Connection[Any]) -> list[str]:
    taken, wanted = set(), set()
    for name, types, is_real in connection.execute(_FUNCTIONS, {"names": sorted(called())}):
        taken.add((name, *types))
        if not is_real:
            continue
        wanted.add((name, *["text"] * len(types)))
        for place, one in enumerate(types):
            for other in _NEIGHBOURS.get(one, []):
                wanted.add((name, *types[:place], other, *types[place + 1 :]))
    return [
        _FUNCTION.format(
            name=name, types=", ".join(types), answer="void", shown=f"{name}({', '.join(types)})"
        )
        for name, *types in sorted(wanted - taken)
        if '"any"' not in types  # No function in PL/pgSQL can have such a parameter.
    ]


def postgres_sql() -> list[Path]:
    """Return the files of statements and migrations for PostgreSQL."""
    statements = (STORE / "sql").glob("*.postgres.sql")
    return [*statements, *(STORE / "postgres" / "migrations").glob("*.sql")]


def called() -> set[str]:
    """Return the names of PostgreSQL's functions that duly calls."""
    folder = STORE / "postgres"
    paths = [*postgres_sql(), *folder.glob("*.py")]
    texts = [path.read_text() for path in paths]
    return {name for text in texts for name in re.findall(r"\bpg_catalog\.(\w+)\(", text)}
