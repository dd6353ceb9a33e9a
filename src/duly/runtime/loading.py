"""Imports the application that a worker process is to run."""

import importlib
import sys
import traceback
from pathlib import Path
from typing import Any

from duly.errors import CannotLoad


def load(reference: str) -> Any:  # noqa: ANN401 - the user's application; the layer above ours
    """Import `module:attribute`, as the command line names it."""
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    module, _, attribute = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in (attribute or "app").split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise CannotLoad(reference, str(error)) from error
    except (Exception, SystemExit) as error:
        # The user's own module failed while it was imported: only its traceback tells where.
        traceback.print_exception(error)
        raise CannotLoad(reference, f"{type(error).__name__}: {error}") from error
    if not hasattr(found, "registry"):
        problem = f"it is a {type(found).__name__}, not a Duly application"
        raise CannotLoad(reference, problem)
    return found
