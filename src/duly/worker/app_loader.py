"""From `module:attribute` to the application, or to what is wrong with the user's module."""

import sys
import traceback
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from duly.errors import AppBroken, AppNotFound, DulyError
from duly.observe.logs import log_notice
from duly.worker.garbage_collection import collect_as_usual

_PACKAGE = f"{Path(__file__).parents[1]}/"
_IMPORTLIB = str(Path(traceback.__file__).with_name("importlib"))
_OURS = (_PACKAGE, _IMPORTLIB, "<frozen importlib", "<frozen runpy")
"""How the files begin whose frames a user need not read."""


def parse_reference(reference: str) -> tuple[str, str]:
    """Return module and attribute of `module:attribute`; the attribute is "app" if left out."""
    module, _, attribute = reference.partition(":")
    attribute = attribute or "app"
    if "/" in module or module.endswith(".py"):
        dotted = module.removesuffix(".py").strip("./").replace("/", ".")
        message = f"{reference!r} is a file name; use the name of its module: {dotted}:{attribute}"
        raise AppNotFound(message)
    names = [*module.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        message = f"{reference!r} is not of the form module:attribute, such as shop:app"
        raise AppNotFound(message)
    return module, attribute


def load(reference: str) -> Any:  # noqa: ANN401 - the user's application; the layer above ours
    """Import an application, or say at which step that failed."""
    found = locate(reference)
    if is_celery(found):
        raise AppNotFound(
            f"{reference} is a Celery application. It has dead letters (`duly dead`) but no runs; "
            "name a Duly application"
        )
    if not _is_app(found):
        module_name, attribute = parse_reference(reference)
        message = (
            f"{module_name}:{attribute} is a {type(found).__name__}, not a Duly application"
            f"{_hint(sys.modules[module_name])}"
        )
        raise AppNotFound(message)
    import_modules(found.settings.worker().include)
    return found


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user, or say which one failed."""
    for name in names:
        _import(name)


def prepare_to_work(app: Any, modules: Iterable[str]) -> None:  # noqa: ANN401 - as above
    """Import the tasks of an application and store its schedules, before it starts a worker."""
    import_modules(modules)
    if not app.registry.names():
        log_notice(
            "no task is registered, so this worker runs nothing: import the modules that define "
            "your tasks, or name them in Duly(include=[…])"
        )
    app.schedules.sync()


def locate(reference: str) -> Any:  # noqa: ANN401 - as above
    """Import what a reference names, whatever it is."""
    module_name, attribute = parse_reference(reference)
    module = _import(module_name)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            message = f"module {module_name!r} has no {attribute!r}{_hint(module)}"
            raise AppNotFound(message) from None
    return found


def is_celery(value: object) -> bool:
    """Say whether it is an application of Celery; where one is, its module has imported Celery."""
    kind = getattr(sys.modules.get("celery"), "Celery", None)
    return isinstance(kind, type) and isinstance(value, kind)


def explanation_of(error: DulyError) -> str:
    """Return what to write about an application that does not start: one line comes last."""
    cause = error.__cause__
    shown = users_traceback(cause) if isinstance(error, AppBroken) and cause is not None else ""
    return f"{shown}Error: {error}\n"


def users_traceback(error: BaseException) -> str:
    """Return a traceback without the frames of duly and of the import machinery."""
    whole = traceback.TracebackException.from_exception(error)
    links: list[traceback.TracebackException | None] = [whole]
    while links:
        link = links.pop()
        if link is not None:
            link.stack = traceback.StackSummary.from_list(_users_frames(link.stack))
            links += [link.__cause__, link.__context__]
    return "".join(whole.format())


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    collect_as_usual()
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
    frames = _users_frames(traceback.extract_tb(error.__traceback__))
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, SyntaxError):
        place = ""  # Its text says where, and no line of the module has run.
    return AppBroken(f"importing {name!r} failed: {type(error).__name__}: {error}{place}")


def _users_frames(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    return [frame for frame in frames if not frame.filename.startswith(_OURS)]


def _is_app(value: object) -> bool:
    """Say whether it is an application; its class is in a layer above."""
    return hasattr(value, "registry") and hasattr(value, "use_url")


def _hint(module: ModuleType) -> str:
    names = sorted(name for name, value in vars(module).items() if _is_app(value))
    return f"; there is {', '.join(names)}" if names else "; no Duly() is assigned there"
