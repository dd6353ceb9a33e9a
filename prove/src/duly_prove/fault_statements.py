"""The statements of fault injection, in addition to duly's own."""

from pathlib import Path

from duly.store.statements import Statements, load

_FOLDER = Path(__file__).parent / "sql"


def fault_statements(kind: str) -> Statements:
    """Return the statements for a kind of database, `sqlite` or `postgresql`."""
    return load(kind, "faults", _FOLDER)
