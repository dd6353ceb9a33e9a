"""The form of the ids of runs."""

import re

_RUN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def is_run_id(text: str) -> bool:
    """Return whether a text has the form of a run's id. Other spellings of a UUID do not."""
    return _RUN_ID.fullmatch(text) is not None
