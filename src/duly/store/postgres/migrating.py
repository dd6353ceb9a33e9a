"""The statements that bring a database's tables to a version."""

from duly.store.schema import Migration

LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('duly migrations', 1685417081))"
CREATE = """
CREATE TABLE IF NOT EXISTS duly_schema
    (version integer NOT NULL, oldest_code integer NOT NULL, name text NOT NULL)
"""
RAN = "INSERT INTO duly_schema VALUES (%(version)s, %(oldest_code)s, %(name)s)"
VERSION = "SELECT coalesce(max(version), 0), coalesce(max(oldest_code), 0) FROM duly_schema"


def statements(step: Migration) -> list[str]:
    """Return a migration's statements."""
    return [step.sql]
