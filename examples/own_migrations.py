"""A migration tool that is not ours: steps of the application, and duly's versions among them.

`python -m examples.own_migrations FILE` brings an SQLite file up to date, and says what it did.
"""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from duly import Duly
from duly.extend import migrate_schema, schema_versions

Step = Callable[["Migrations"], None]


class Migrations:
    """The tool: it runs each step once, and remembers the names of those that it ran."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        connection.execute("CREATE TABLE IF NOT EXISTS migrations (name TEXT PRIMARY KEY)")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")

    def run(self, steps: dict[str, Step]) -> list[str]:
        done = {name for (name,) in self.connection.execute("SELECT name FROM migrations")}
        missing = [name for name in steps if name not in done]
        for name in missing:
            # If the program dies between the two, the step runs again, and does nothing then.
            steps[name](self)
            self.connection.execute("INSERT INTO migrations VALUES (?)", (name,))
        return missing


def make_orders(migrations: Migrations) -> None:
    migrations.connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")


def migrate_duly(version: int, migrations: Migrations) -> None:
    cursor = migrations.connection.cursor()
    migrate_schema(cursor, "sqlite", version, transaction=migrations.transaction)


STEPS: dict[str, Step] = {
    "orders": make_orders,
    **{f"duly-{version}": partial(migrate_duly, version) for version in schema_versions("sqlite")},
}


if __name__ == "__main__":
    file = sys.argv[1] if len(sys.argv) > 1 else "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        print(", ".join(Migrations(connection).run(STEPS)) or "nothing to do")
    with closing(Duly(f"sqlite:///{file}")) as app:
        print(len(app.runs.list()), "runs")
