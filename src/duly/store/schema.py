"""What is said about the version of the tables."""

from collections.abc import Callable
from typing import NamedTuple, Protocol


class SchemaMigration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    sql: str

    def for_one_transaction(self) -> "SchemaMigration":
        """Return the step with indexes that are built while their tables are locked."""
        return self._replace(sql=self.sql.replace(" INDEX CONCURRENTLY ", " INDEX "))


class Schema(NamedTuple):
    """The version a database has, and the oldest code that may work on it. 0 is empty."""

    version: int
    oldest_code: int


class MigratableStore(Protocol):
    """What the migrator needs of a database."""

    def read_schema(self) -> Schema: ...
    def run_migrations(self, plan: Callable[[Schema], list[SchemaMigration]]) -> list[str]:
        """Ask `plan` under the migration lock what is missing, run it, return the names."""
        ...
