"""The form of the ids of runs."""

import re

_RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """Return whether a text can be the id of a run. PostgreSQL accepts other spellings of UUIDs."""
    return _RUN_ID.fullmatch(text) is not None
