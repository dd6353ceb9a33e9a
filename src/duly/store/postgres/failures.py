"""Translates errors of the database: what happened, and what to do about it."""

import re

import psycopg

from duly.errors import (
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from duly.store.postgres.address import Address
from duly.store.refusal import ValueRefused

CONTENDED = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: nothing was written, and a retry can succeed."""

READ_ONLY = "25006"
"""The server refuses writes. It was the primary, and another server is the primary now."""

_UNAVAILABLE_CLASSES = frozenset({"08", "53", "57", "58"})
_VALUE_CLASSES = frozenset({"22", "23", "54"})
"""Data exception, integrity constraint violation, program limit exceeded."""
_ROW = re.compile(r"DETAIL:\s*Failing row contains .*", re.DOTALL)
"""The server quotes the whole row, and the arguments of a run may be secret."""
_REFUSALS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "permission denied",
    "not permitted to log in",
    "no password supplied",
    "does not support SSL",
    "certificate",
)
"""The driver has no code for a refused connection, only the server's text."""


def is_fatal(error: psycopg.Error) -> bool:
    """Return whether this error ends its connection.

    An error of the server has a severity that shows it. An OperationalError without a code comes
    from the driver instead, and concerns the connection itself.
    """
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    is_last_word = error.diag.severity_nonlocalized in {"FATAL", "PANIC"}
    return is_last_word or error.sqlstate.startswith("08")


def translated(error: psycopg.Error, address: Address) -> StoreError:
    """Return duly's error for one of the driver's."""
    place = address.shown_url
    # A driver message may have several lines, while duly's error messages have one.
    words = " ".join(_ROW.sub("", address.secrets.masked(error)).split())
    match error.sqlstate:
        case None:
            return _without_code(error, place, words)
        case state if state == READ_ONLY:
            return StoreReadOnly(
                f"{place} does not accept writes ({words}); use the primary, not a standby"
            )
        case "53100":
            return StoreFull(
                f"the disk of {place} is full ({words}); nothing was written; free disk space"
            )
        case "53200":
            return StoreError(
                f"{place} is out of memory ({words}); raise max_locks_per_transaction if the "
                "message asks for it"
            )
        case "42P01" | "42703" | "42883":
            return SchemaMismatch(
                f"{place} lacks an object that this code needs ({words}); check the search_path, "
                "then run `duly db migrate`"
            )
        case "42501" | "28000" | "28P01" | "3D000":
            return StoreRefused(
                f"{place} denies the operation ({words}); check the role and its rights"
            )
        case "55P03":
            return StoreBusy(
                f"{place}: another open transaction holds a lock that this operation needs "
                f"({words}); end that transaction; if it is your own, write in it with "
                "using(connection=…)"
            )
        case state if state in CONTENDED or state[:2] in _UNAVAILABLE_CLASSES:
            return StoreUnavailable(f"{place} gave an unexpected answer ({words}); try again")
        case state if state[:2] in _VALUE_CLASSES:
            return ValueRefused(f"{place}: {words}")
        case _ if is_fatal(error):
            return StoreUnavailable(f"{place} ended the connection ({words}); try again")
        case _:
            return StoreError(f"{place}: {words}")


def _without_code(error: psycopg.Error, place: str, words: str) -> StoreError:
    if isinstance(error, psycopg.DataError):
        return ValueRefused(f"{place}: {words}")
    if not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return StoreError(f"{place}: {words}")
    if any(sign in words for sign in _REFUSALS):
        return StoreRefused(
            f"{place} refuses the connection ({words}); check the user, the password and the name "
            f"of the database"
        )
    if "session is read-only" in words:
        return StoreReadOnly(f"{place} does not accept writes ({words}); use the primary")
    return StoreUnavailable(
        f"{place} cannot be reached ({words}); check that the server runs and that the address is "
        "right"
    )
