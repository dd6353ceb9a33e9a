"""The name of the operator, which is recorded with every operator action."""

import os
import pwd

from duly.core.key import check_words
from duly.limits import NAME_BYTES
from duly.settings import load_settings


def resolve_actor(actor: str | None) -> str:
    """Return the given name, or the name in the settings, or this process's user and host."""
    return actor_of(actor or load_settings().actor)


def actor_of(name: str | None) -> str:
    """Return the name if there is one, or else this process's user and host."""
    return check_words("actor", name or _user_and_host(), NAME_BYTES)


def _user_and_host() -> str:
    try:
        user = os.environ.get("LOGNAME") or os.environ.get("USER") or pwd.getpwuid(os.getuid())[0]
    except KeyError:
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}"
