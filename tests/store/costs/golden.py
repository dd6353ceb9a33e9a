"""The file of allowed costs: one line for each case, with a figure for each database."""

import fcntl
import re
from pathlib import Path

from tests.store.costs.counters import Cost

FILE = Path(__file__).parents[1] / "statement_counts.txt"
HEAD = """\
# Statements per verb, with BEGIN and COMMIT; on PostgreSQL also round trips, which are waits for
# the server. tests/store/test_statement_counts.py counts them. CONTRIBUTING.md tells how to write
# this file.
"""
_LINE = re.compile(r"(.+?)  +sqlite +(\d+|-)   postgres +(?:(\d+) in (\d+) round trips?|-)")

Costs = dict[str, Cost]
"""By database: "sqlite" or "postgres"."""


def read_costs() -> dict[str, Costs]:
    """Return the allowed cost of each case."""
    lines = FILE.read_text().splitlines()
    return dict(map(_read_line, (line for line in lines if line and not line.startswith("#"))))


def write_cost(cases: set[str], case: str, database: str, cost: Cost) -> None:
    """Write the cost of a case, and remove the lines of cases that no longer exist.

    Several processes may do so at once.
    """
    with FILE.open("a") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        costs = {name: found for name, found in read_costs().items() if name in cases}
        costs.setdefault(case, {})[database] = cost
        FILE.write_text(text_of(costs))


def text_of(costs: dict[str, Costs]) -> str:
    """Return the text of the file."""
    width = max(map(len, costs))
    lines = [_line(name, found, width) for name, found in sorted(costs.items())]
    return HEAD + "".join(f"{line}\n" for line in lines)


def shown(cost: Cost) -> str:
    """Return the text of a cost."""
    statements = f"{cost.statements} statement{'s' * (cost.statements != 1)}"
    return f"{statements} in {_trips(cost)}" if cost.round_trips else statements


def _line(name: str, costs: Costs, width: int) -> str:
    sqlite, postgres = costs.get("sqlite"), costs.get("postgres")
    on_sqlite = "-" if sqlite is None else str(sqlite.statements)
    on_postgres = "-" if postgres is None else f"{postgres.statements:>3} in {_trips(postgres)}"
    return f"{name:<{width}}  sqlite {on_sqlite:>3}   postgres {on_postgres:>3}"


def _trips(cost: Cost) -> str:
    return f"{cost.round_trips} round trip{'s' * (cost.round_trips != 1)}"


def _read_line(line: str) -> tuple[str, Costs]:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    name, sqlite, statements, round_trips = found.groups()
    costs = {} if sqlite == "-" else {"sqlite": Cost(0, int(sqlite))}
    if statements is not None:
        costs["postgres"] = Cost(int(round_trips), int(statements))
    return name, costs
