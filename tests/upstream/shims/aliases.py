"""Makes the name of an upstream package importable, as modules of duly.

A name that duly does not have becomes an `Absent`: it can be imported, so that the other tests of a
module still run, and any use of it fails the test that uses it.
"""

import importlib
import sys
from collections.abc import Collection
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Absent:
    """A name of an upstream package that duly has no counterpart of."""

    def __init__(self, name: str) -> None:
        self.__dict__["_name"] = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith(("__", "_pytest")):
            raise AttributeError(attribute)
        raise NotImplementedError(f"duly has no {self._name}, so no {attribute} of it")

    def __call__(self, *_args: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"duly has no {self._name}")

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()


class Alias(MetaPathFinder, Loader):
    """Finds the modules of one upstream package in modules of duly and of the shims."""

    def __init__(
        self, package: str, modules: dict[str, tuple[str, ...]], *, names: Collection[str] = ()
    ) -> None:
        self._package = package
        self._modules = modules
        """For each module, where its names are looked up, first match first."""
        self._names = names
        """The names that shims define; a shim's other names are its own."""

    def install(self) -> None:
        """Let imports find the package; a package of that name must not be installed."""
        sys.meta_path.insert(0, self)

    def find_spec(self, fullname: str, *_path: Any) -> ModuleSpec | None:
        package, _, module = fullname.partition(".")
        if package != self._package or module not in self._modules:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        path = module.__name__.partition(".")[2]
        sources = self._modules[path]

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if f"{path}.{name}".lstrip(".") in self._modules:
                return importlib.import_module(f"{module.__name__}.{name}")
            for source in sources:
                if not source.startswith("duly.") and name not in self._names:
                    continue
                found = importlib.import_module(source)
                try:
                    return getattr(found, name)
                except (AttributeError, ImportError):
                    continue
            return Absent(f"{module.__name__}.{name}")

        module.__getattr__ = find  # type: ignore[method-assign]
        module.__path__ = []
