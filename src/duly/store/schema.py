"""Types for the version of the tables and for migrations."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class SchemaMigration(NamedTuple):
    """One migration of the tables."""

    version: int
    name: str
    sql: str

    def for_one_transaction(self) -> "SchemaMigration":
        """Return the migration with indexes that are built while their tables are locked."""
        return self._replace(sql=self.sql.replace(" INDEX CONCURRENTLY ", " INDEX "))


class Schema(NamedTuple):
    """The version of a database, and the oldest code that may use it. Version 0 has no tables."""

    version: int
    oldest_code: int


class MigratableStore(Protocol):
    """The interface that the migrator needs of a database."""

    def read_schema(self) -> Schema: ...
    def run_migrations(self, plan: Callable[[Schema], list[SchemaMigration]]) -> list[str]:
        """Run the migrations that `plan` returns, under the migration lock; return their names."""
        ...
