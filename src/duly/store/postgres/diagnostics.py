"""Diagnoses of the PostgreSQL server and its configuration."""

from typing import Any, Protocol

from duly.clock import MICROSECONDS
from duly.core.diagnosis import Diagnosis, diagnosis_of, healthy
from duly.core.record import OpenTransaction
from duly.core.time_text import duration
from duly.store.statements import load

SQL = load("postgres", "diagnose")

_FULL = 0.8
CONNECTIONS_OF_WORKER = 5
"""Writes, claims, ends of runs, hints, and heartbeats, which a supervisor sends for others."""


class DiagnosticQuery(Protocol):
    """A function that executes a query and returns its rows."""

    def __call__(self, sql: str, parameters: dict[str, Any], /) -> list[tuple[Any, ...]]: ...


def diagnose(query: DiagnosticQuery, *, is_pooled: bool) -> list[Diagnosis]:
    """Return all diagnoses, good and bad."""
    (row,) = query(SQL["facts"], {})
    version, fsync, pages, durable, autovacuum, standby, room, used, workers = row
    wanted = workers * CONNECTIONS_OF_WORKER
    return [
        healthy("engine", f"PostgreSQL {version}"),
        diagnosis_of(
            "durability",
            f"fsync {fsync}, full_page_writes {pages}, synchronous_commit {durable}",
            bad="off" in {fsync, pages, durable},
            level="error",
            remedy=_durability_remedy(fsync, pages),
        ),
        diagnosis_of(
            "pooler",
            "a pooler that shares connections: workers get no notifications and poll every second"
            if is_pooled
            else "connected directly to the server",
            bad=is_pooled,
            remedy="name the server itself in DULY_URL of the workers, so that they are notified "
            "at once; programs that only enqueue can keep using the pooler",
        ),
        diagnosis_of(
            "primary",
            "a standby, which accepts no writes" if standby else "a primary",
            bad=standby,
            level="error",
            remedy="use the address of the primary, or list several hosts: duly then picks "
            "the primary",
        ),
        diagnosis_of(
            "autovacuum",
            f"autovacuum {autovacuum}",
            bad=autovacuum == "off",
            remedy="set autovacuum on: claiming runs becomes slow while dead rows accumulate",
        ),
        _creators(query),
        _oldest_transaction(query),
        diagnosis_of(
            "connections",
            f"{used} of {room} are in use, and {workers} live workers need up to {wanted}",
            bad=max(used, wanted) > room * _FULL,
            remedy=(
                "raise max_connections, run fewer worker processes, or put PgBouncer in front of "
                "the server"
            ),
        ),
    ]


def find_oldest_transaction(query: DiagnosticQuery) -> OpenTransaction | None:
    """Return the transaction that has prevented the removal of dead rows for longest."""
    found = query(SQL["oldest_transaction"], {})
    return OpenTransaction._make(found[0]) if found else None


def _creators(query: DiagnosticQuery) -> Diagnosis:
    names = [str(name) for (name,) in query(SQL["creators"], {})]
    return diagnosis_of(
        "schema",
        f"other roles can create functions in the schema of duly's tables: {', '.join(names)}"
        if names
        else "no other role can create functions in the schema of duly's tables",
        bad=bool(names),
        remedy="REVOKE CREATE ON SCHEMA from these roles and from PUBLIC: duly does not call their "
        "functions, but your own SQL that runs with more rights may",
    )


def _oldest_transaction(query: DiagnosticQuery) -> Diagnosis:
    oldest = find_oldest_transaction(query)
    if oldest is None:
        return healthy("open transactions", "there are none")
    age = duration(oldest.seconds * MICROSECONDS)
    return diagnosis_of(
        "open transactions",
        f"the oldest has been open for {age}, in {oldest.session()}",
        bad=oldest.is_too_long(),
        remedy=f"end it, or call pg_terminate_backend({oldest.pid}): rows that were deleted after "
        "it began cannot be vacuumed, so claiming runs becomes slow",
    )


def _durability_remedy(fsync: str, pages: str) -> str:
    if "off" in {fsync, pages}:
        return (
            "set fsync and full_page_writes on: without them a crash of the machine loses or "
            "corrupts accepted runs"
        )
    # duly's own connections turn it on for themselves, for any default of the server.
    return (
        "synchronous_commit was turned off on duly's own connections, for example by options in "
        "the address: remove that setting, or a crash of the machine loses accepted runs"
    )


def check_integrity(query: DiagnosticQuery) -> list[Diagnosis]:
    """Check for broken indexes, with amcheck if it is installed."""
    broken = [str(row[0]) for row in query(SQL["broken_indexes"], {})]
    if broken:
        remedy = (
            "run REINDEX INDEX on it; an index is not valid after a failed REINDEX CONCURRENTLY"
        )
        return [
            Diagnosis("integrity", "error", f"index {name} is broken", remedy) for name in broken
        ]
    found = query(SQL["schema_of_amcheck"], {})
    if not found:
        remedy = "CREATE EXTENSION amcheck lets this command read the indexes themselves"
        text = "every index is valid, according to the catalog"
        return [Diagnosis("integrity", "warning", text, remedy)]
    ((schema,),) = found
    ((count,),) = query(SQL["check_indexes"].replace("{schema}", schema), {})
    return [healthy("integrity", f"amcheck read {count} indexes and found every row in them")]
