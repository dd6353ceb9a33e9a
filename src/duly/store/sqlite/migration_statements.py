"""The statements that migrate a file's tables, and record the version."""

import sqlite3

from duly.store.schema import SchemaMigration

CREATE = """
CREATE TABLE IF NOT EXISTS duly_schema
    (version INTEGER NOT NULL, oldest_code INTEGER NOT NULL, name TEXT NOT NULL)
"""
RAN = "INSERT INTO duly_schema VALUES (:version, :oldest_code, :name)"
VERSION = "SELECT coalesce(max(version), 0), coalesce(max(oldest_code), 0) FROM duly_schema"


def statements(step: SchemaMigration) -> list[str]:
    """Return a migration's statements one by one.

    `executescript` would commit on its own.
    """
    found = []
    current = ""
    for line in step.sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            found.append(current)
            current = ""
    return found
