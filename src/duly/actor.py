"""The name of the operator, which is recorded with every operator action."""

import os
import pwd

from duly.core.key import check_words
from duly.limits import NAME_BYTES
from duly.settings import load_settings


def resolve_actor(actor: str | None) -> str:
    """Return the given name, or the name in the settings, or this process's user and host."""
    return check_words("actor", actor or _default_actor(), NAME_BYTES)


def _default_actor() -> str:
    named = load_settings().actor
    if named:
        return named
    try:
        user = os.environ.get("LOGNAME") or os.environ.get("USER") or pwd.getpwuid(os.getuid())[0]
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
