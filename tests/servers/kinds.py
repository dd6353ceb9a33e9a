"""The kinds of store that tests run on, which of them can run here, and why the others cannot."""

import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import pgbouncer, postgres, redis

POSTGRES_URL_VARIABLE = "DULY_TEST_POSTGRES"
REDIS_URL_VARIABLE = "DULY_TEST_REDIS"
OLDEST_POSTGRES = "DULY_TEST_OLDEST_POSTGRES" in os.environ
# The oldest and the newest supported version.
PROMISED_VERSIONS = (15, 18)


@dataclass(frozen=True, slots=True)
class StoreKind:
    """One kind of store: its name, its server, and the reason if it is missing."""

    name: str
    runs_on: str
    missing: str | None = None
    binaries: Path | None = None


def _sqlite_kinds() -> list[StoreKind]:
    runs_on = f"SQLite {sqlite3.sqlite_version}"
    return [StoreKind("sqlite-wal", runs_on), StoreKind("sqlite-rollback", runs_on)]


def _postgres_kinds() -> list[StoreKind]:
    if url := os.environ.get(POSTGRES_URL_VARIABLE):
        version = postgres.PostgresEndpoint(url).version
        missing = f"{POSTGRES_URL_VARIABLE} names another server to use"
        found = [StoreKind(_postgres_name(version), f"PostgreSQL {version}, not our own")]
    else:
        missing = "no server programs of this version were found"
        found = [
            StoreKind(_postgres_name(version), f"PostgreSQL {version}", binaries=folder)
            for folder in postgres.find_binaries().values()
            for version in [postgres.version_of(folder)]
        ]
    names = {kind.name for kind in found}
    absent = [
        StoreKind(_postgres_name(str(major)), f"PostgreSQL {major}", missing=missing)
        for major in PROMISED_VERSIONS
        if _postgres_name(str(major)) not in names
    ]
    return sorted(found + absent, key=lambda kind: kind.name)


def _pgbouncer_kind(server: StoreKind | None) -> StoreKind:
    program = pgbouncer.find_pgbouncer()
    if program is None:
        return StoreKind("pgbouncer", "PgBouncer", missing="the program was not found")
    runs_on = f"PgBouncer {pgbouncer.version_of(program)}"
    if server is None:
        return StoreKind("pgbouncer", runs_on, missing="no PostgreSQL to put it in front of")
    return StoreKind("pgbouncer", f"{runs_on} on {server.runs_on}", binaries=program)


def _redis_kind() -> StoreKind:
    if url := os.environ.get(REDIS_URL_VARIABLE):
        return StoreKind("redis", f"Redis {redis.RedisEndpoint(url).version}, not our own")
    program = redis.find_redis()
    if program is None:
        return StoreKind("redis", "Redis", missing="the program was not found")
    return StoreKind("redis", f"Redis {redis.version_of(program)}", binaries=program)


def _chromium_kind() -> StoreKind:
    """Return the browser. It is no store, but tests select it in the same way."""
    # The headless shell renders the same pages at half the cost.
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        return StoreKind("chromium", "Chromium", missing="the program was not found")
    asked = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = re.search(r"\d+(\.\d+)*", asked.stdout)
    return StoreKind("chromium", f"Chromium {version[0] if version else ''}", None, Path(program))


def _postgres_name(version: str) -> str:
    return f"postgres-{version.partition('.')[0]}"


_SQLITE = _sqlite_kinds()
_POSTGRES = _postgres_kinds()

# PgBouncer connects to the newest PostgreSQL that runs here.
BEHIND_PGBOUNCER = next((kind for kind in reversed(_POSTGRES) if kind.missing is None), None)

KINDS = {
    kind.name: kind
    for kind in [
        *_SQLITE,
        *_POSTGRES,
        _pgbouncer_kind(BEHIND_PGBOUNCER),
        _redis_kind(),
        _chromium_kind(),
    ]
}
POSTGRES_KINDS = tuple(kind.name for kind in _POSTGRES)
STORE_KINDS = (*(kind.name for kind in _SQLITE), *POSTGRES_KINDS)


def one_of_each_database(names: Iterable[str], *, newest: bool = not OLDEST_POSTGRES) -> list[str]:
    """Keep one kind per database: the conformance suite shows that its kinds behave alike.

    Of PostgreSQL that is the newest, which takes a sixth less for the same, or the oldest.
    """
    chosen: dict[str, str] = {}
    for name in names:
        database = name.partition("-")[0]
        is_newer = newest and database == "postgres" and KINDS[name].missing is None
        if is_newer or database not in chosen or KINDS[chosen[database]].missing is not None:
            chosen[database] = name
    return list(chosen.values())


def kind_or_skip(name: str) -> StoreKind:
    """Return a kind, or skip the test that needs it. The closing table lists skipped tests."""
    kind = KINDS[name]
    if kind.missing is not None:
        pytest.skip(f"{name}: {kind.missing}")
    return kind
