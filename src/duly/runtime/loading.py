"""Imports the application that a worker process is to run."""

import importlib
import sys
from pathlib import Path
from typing import Any


def load(reference: str) -> Any:  # noqa: ANN401 - the user's application; the layer above ours
    """Import `module:attribute`, as the command line names it."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for name in (attribute or "app").split("."):
        found = getattr(found, name)
    if not hasattr(found, "registry"):
        message = f"{reference} is a {type(found).__name__}, not a Duly application"
        raise TypeError(message)
    return found
