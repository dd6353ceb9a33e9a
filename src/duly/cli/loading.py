"""From `module:attribute` to the application, and from the shared options to an open one."""

import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from duly.app import Duly
from duly.cli.failures import AppBroken, AppNotFound
from duly.cli.places import missing_file
from duly.cli.session import Session
from duly.errors import StoreRefused


def app_of(session: Session, *, creates: bool = False) -> Duly:
    """Return the application that the session names, or one without tasks on its store.

    Only what `creates` may make the database's file: looking into the wrong folder must say so,
    not leave an empty database there.
    """
    reference = session.app_reference
    if reference is None:
        app = Duly(session.url)
    else:
        app = load_app(reference)
        if session.url is not None:
            app.use_url(session.url)
    missing = None if creates else missing_file(app.url)
    if missing is not None:
        message = (
            f"there is no database at {missing}; name another with --url, "
            f"or create this one with `duly db migrate`"
        )
        raise StoreRefused(message)
    click.get_current_context().call_on_close(app.close)
    return app


def app_with_tasks(session: Session, *, purpose: str) -> Duly:
    """Return the application that the session names; there must be one."""
    if session.app_reference is None:
        message = f"{purpose} needs the application: give --app module:attribute or set DULY_APP"
        raise click.UsageError(message)
    return app_of(session, creates=True)


def parse_reference(reference: str) -> tuple[str, str]:
    """Return module and attribute of `module:attribute`; the attribute is "app" if left out."""
    module, _, attribute = reference.partition(":")
    attribute = attribute or "app"
    if "/" in module or module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        message = f"{reference!r} names a file; name its module: {dotted}:{attribute}"
        raise AppNotFound(message)
    names = [*module.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        message = f"{reference!r} is not of the form module:attribute, such as shop:app"
        raise AppNotFound(message)
    return module, attribute


def load_app(reference: str) -> Duly:
    """Import an application, or say at which step that failed."""
    module_name, attribute = parse_reference(reference)
    found: Any = _import(module_name)
    module = found
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            message = f"module {module_name!r} has no {attribute!r}{_hint(module)}"
            raise AppNotFound(message) from None
    if not isinstance(found, Duly):
        message = (
            f"{module_name}:{attribute} is a {type(found).__name__}, not a Duly application"
            f"{_hint(module)}"
        )
        raise AppNotFound(message)
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(f"{missing}."):
            message = f"there is no module {missing!r} in {here} or among the installed packages"
            raise AppNotFound(message) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:  # a module may raise anything while it is imported
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> AppBroken:
    return AppBroken(
        f"importing {name!r} failed: {type(error).__name__}: {error}{_place_of(error)}; "
        f"add -v for the traceback"
    )


def _place_of(error: BaseException) -> str:
    """Return the line of user code that raised: the last one outside the import machinery."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and not frame.filename.startswith("<frozen importlib")
    ]
    own = [frame for frame in frames if not frame.filename.endswith("/importlib/__init__.py")]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _hint(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if isinstance(value, Duly))
    return f"; there is {', '.join(names)}" if names else "; no Duly() is assigned there"
