"""Who acts: recorded with every operator's act."""

import getpass
import os
import platform


def default_actor() -> str:
    """Return DULY_ACTOR, or the user of this process and its host."""
    named = os.environ.get("DULY_ACTOR")
    if named:
        return named
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{platform.node()}"
