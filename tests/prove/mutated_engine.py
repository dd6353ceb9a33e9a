"""Changes the engine for a mutant: the text of SQL statements, and functions of the engine."""

import re
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import Any, NamedTuple

from duly.store.statements import load

DATABASES = ("sqlite", "postgres")


def database_of(name: str) -> str:
    """Return the database of a URL or of a kind of store."""
    return "sqlite" if name.startswith("sqlite") else "postgres"


class DoesNotApplyError(Exception):
    """The engine has no longer what a mutant changes."""


class Edit(NamedTuple):
    """A change in a statement of an SQL file."""

    file: str
    statement: str
    old: str | None
    """The text to replace, with any blanks and line breaks between its words. None replaces all."""
    new: str


class MutatedEngine(ExitStack):
    """The engine on one database. The end of the context undoes all changes."""

    def __init__(self, database: str) -> None:
        super().__init__()
        self.database = database
        self.package = f"duly.store.{database}"

    def edit(self, *, sqlite: Sequence[Edit], postgres: Sequence[Edit]) -> None:
        """Change the statements of this database."""
        edits = sqlite if self.database == "sqlite" else postgres
        if not edits:
            raise DoesNotApplyError(f"no statement of {self.database} is to be changed")
        for edit in edits:
            self._edit(edit)

    def replace(self, owner: Any, name: str, new: object) -> None:
        """Replace an attribute that a class or a module has itself."""
        if name not in vars(owner):
            raise DoesNotApplyError(f"{owner.__name__} has no {name}")
        self.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, new)

    def set_item(self, items: dict[Any, Any], key: object, new: object) -> None:
        """Replace an item of a dictionary."""
        if key not in items:
            raise DoesNotApplyError(f"there is no {key!r}")
        self.callback(items.__setitem__, key, items[key])
        items[key] = new

    def module(self, name: str) -> Any:
        """Return a module of the package of this database."""
        try:
            return import_module(f"{self.package}.{name}")
        except ModuleNotFoundError as error:
            raise DoesNotApplyError(f"there is no {self.package}.{name}") from error

    @property
    def store(self) -> Any:
        """The class of the stores."""
        return getattr(self.module("store"), self._either("SqliteStore", "PostgresStore"))

    @property
    def heartbeats(self) -> Any:
        """The class that reads the heartbeats of workers."""
        return getattr(
            self.module("heartbeats"), self._either("FileHeartbeats", "PostgresHeartbeats")
        )

    @property
    def hints(self) -> Any:
        """The class that sends hints."""
        return getattr(self.module("wakeup"), self._either("SqliteHints", "PostgresHints"))

    def _either(self, sqlite: str, postgres: str) -> str:
        return sqlite if self.database == "sqlite" else postgres

    def _edit(self, edit: Edit) -> None:
        statements = load(self.database, edit.file)
        place = f"{edit.statement} in {edit.file}.{self.database}.sql"
        if edit.statement not in statements._texts:
            raise DoesNotApplyError(f"there is no {place}")
        text, count = edit.new, 1
        if edit.old is not None:
            words = r"\s+".join(map(re.escape, edit.old.split()))
            text, count = re.subn(words, lambda _: edit.new, statements[edit.statement])
        if not count:
            raise DoesNotApplyError(f"{place} does not contain {edit.old!r}")
        # Many-row forms and the statements that transactions have looked up contain the old text.
        looked_up = getattr(self.module("transaction"), self._either("script", "statement_text"))
        forget = (statements._expanded.clear, looked_up.cache_clear)
        # The end of the context calls these after it has restored the text.
        for each in forget:
            self.callback(each)
        self.set_item(statements._texts, edit.statement, text)
        for each in forget:
            each()
