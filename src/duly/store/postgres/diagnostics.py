"""What is to be said of the PostgreSQL server and of how it is set up."""

from typing import Any, Protocol

from duly.core.diagnosis import Diagnosis, diagnosis_of, healthy
from duly.core.record import OpenTransaction
from duly.store.statements import load

SQL = load("duly.store.postgres", "diagnose")

_FULL = 0.8


class DiagnosticQuery(Protocol):
    """Reads rows."""

    def __call__(self, sql: str, parameters: dict[str, Any], /) -> list[tuple[Any, ...]]: ...


def diagnose(query: DiagnosticQuery, *, is_pooled: bool) -> list[Diagnosis]:
    """Return what was found, good and bad."""
    (row,) = query(SQL["facts"], {})
    version, fsync, pages, durable, autovacuum, standby, room, used = row
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
            "a pooler that shares connections: workers are not woken, and look every second"
            if is_pooled
            else "connected to the server itself",
            bad=is_pooled,
            remedy="name the server itself in DULY_URL of the workers, and they are woken at once; "
            "programs that only enqueue may go on through the pooler",
        ),
        diagnosis_of(
            "primary",
            "a standby, which takes no writes" if standby else "a primary",
            bad=standby,
            level="error",
            remedy="name the primary's address, or several hosts: duly then picks the primary",
        ),
        diagnosis_of(
            "autovacuum",
            f"autovacuum {autovacuum}",
            bad=autovacuum == "off",
            remedy="set autovacuum on: claims become slow while dead rows pile up",
        ),
        _creators(query),
        _oldest_transaction(query),
        diagnosis_of(
            "connections",
            f"{used} of {room} are in use",
            bad=used > room * _FULL,
            remedy="raise max_connections, run fewer worker processes, or put PgBouncer before it",
        ),
    ]


def find_oldest_transaction(query: DiagnosticQuery) -> OpenTransaction | None:
    """Return the transaction that has kept dead rows from being removed for longest."""
    found = query(SQL["oldest_transaction"], {})
    return OpenTransaction._make(found[0]) if found else None


def _creators(query: DiagnosticQuery) -> Diagnosis:
    names = [str(name) for (name,) in query(SQL["creators"], {})]
    return diagnosis_of(
        "schema",
        f"others may create functions beside duly's tables: {', '.join(names)}"
        if names
        else "nobody else may create functions beside duly's tables",
        bad=bool(names),
        remedy="REVOKE CREATE ON SCHEMA from them and from PUBLIC: duly calls nothing of theirs, "
        "but SQL of your own that runs with more rights may",
    )


def _oldest_transaction(query: DiagnosticQuery) -> Diagnosis:
    oldest = find_oldest_transaction(query)
    if oldest is None:
        return healthy("open transactions", "there are none")
    return diagnosis_of(
        "open transactions",
        f"the oldest has been open for {oldest.seconds:.0f} s, in {oldest.session()}",
        bad=oldest.is_too_long(),
        remedy=f"end it, or call pg_terminate_backend({oldest.pid}): rows that were deleted since "
        "it began cannot be vacuumed, and claims become slow",
    )


def _durability_remedy(fsync: str, pages: str) -> str:
    if "off" in {fsync, pages}:
        return (
            "set fsync and full_page_writes on: without them a crash of the machine loses or "
            "corrupts what was accepted"
        )
    # Connections of duly's turn it on for themselves, whatever the server's default is.
    return (
        "something turned synchronous_commit off on duly's own connections, such as options in "
        "the address: leave it out, or a crash of the machine loses what was accepted"
    )


def check_integrity(query: DiagnosticQuery) -> list[Diagnosis]:
    """Look for broken indexes, by amcheck where it is installed."""
    broken = [str(row[0]) for row in query(SQL["broken_indexes"], {})]
    if broken:
        remedy = "REINDEX INDEX it; an index is not valid after a failed REINDEX CONCURRENTLY"
        return [
            Diagnosis("integrity", "error", f"index {name} is broken", remedy) for name in broken
        ]
    found = query(SQL["schema_of_amcheck"], {})
    if not found:
        remedy = "CREATE EXTENSION amcheck lets this command read the indexes themselves"
        text = "every index is valid, as far as the catalog says"
        return [Diagnosis("integrity", "warning", text, remedy)]
    ((schema,),) = found
    ((count,),) = query(SQL["check_indexes"].replace("{schema}", schema), {})
    return [healthy("integrity", f"amcheck read {count} indexes and found every row in them")]
