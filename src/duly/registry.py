"""The tasks this process knows: the only way from a stored name to a function."""

import inspect
import os.path
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Protocol

from duly.core.class_codecs import signature_of
from duly.core.codec import Codec
from duly.core.concurrency_limits import limited_lane
from duly.core.outcome import Outcome
from duly.core.record import Claim
from duly.core.retry import Retry
from duly.core.states import slot_kind_for
from duly.core.verdict import VerdictPolicy
from duly.errors import BadOption, DuplicateTask, TaskNotRegistered
from duly.limits import KEY_BYTES

if TYPE_CHECKING:
    from duly.carrier import Carrier

_PROGRAMS = frozenset({"__main__", "__mp_main__"})
"""The running program, and the name that multiprocessing gives it in child processes."""
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""The types of captured values that can be compared by equality."""


class Tracing(Protocol):
    """Makes spans of enqueued and executed runs; see `duly.observe.tracing`."""

    def enqueue_span(self, task: str, queue: str, run_id: str) -> dict[str, str]:
        """Record that a run is enqueued. Return the tags that carry the trace to its attempts."""
        ...

    def attempt_span(self, claim: Claim) -> AbstractContextManager[Callable[[Outcome], None]]:
        """Return a context manager around a body, which receives the outcome of the body."""
        ...


@dataclass(frozen=True, slots=True)
class Definition:
    """A function and its policy."""

    name: str
    function: Callable[..., Any]
    codec: Codec
    retry: Retry
    timeout: float | None
    queue: str
    priority: int
    hold: bool
    executor: str
    transaction: bool
    transaction_limit: float | None
    key_ttl: float | None
    unique: str
    expires: float | None
    aliases: tuple[str, ...]
    redact: tuple[str, ...]
    carrier: "Carrier | None" = None
    connection: str | None = None
    """The parameter that receives the connection of the run's transaction."""
    tracing: Tracing | None = None
    limit: int | None = None
    """The maximum number of running runs, over all workers: of the task, or of each key."""
    retention: float | None = None
    """Seconds to keep its finished runs. None means as in the settings."""
    limit_key: Callable[..., str] | None = None
    """Returns the key whose limit a call counts against, given the arguments of the call."""
    admit: Callable[[Claim], Outcome | None] | None = None
    """Called before a claimed run starts, off every event loop.

    An outcome ends the attempt instead.
    """
    wrapped: Callable[..., Any] | None = None
    """The application's function, if an integration wraps it in a function of its own."""

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases, each once."""
        return tuple(dict.fromkeys((self.name, *self.aliases)))

    def other_names(self, name: str) -> tuple[str, ...]:
        """Return the name and the aliases, without the given one."""
        return tuple(other for other in self.names if other != name)

    @property
    def slot(self) -> str:
        """The kind of slot that its runs need."""
        return slot_kind_for(self.executor, hold=self.hold, carried=self.carrier is not None)

    @property
    def lane(self) -> str:
        """The lane of its runs, as far as it does not depend on their arguments."""
        return self.slot if self.limit is None else limited_lane(self.slot, self.name)

    def lane_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the lane of a run with these arguments."""
        if self.limit_key is None:
            return self.lane
        key = self._limit_key(self.limit_key, args, kwargs)
        if not isinstance(key, str) or len(key.encode()) > KEY_BYTES:
            # The key is not shown, because it may be a secret of the call.
            raise BadOption(f"limit_key must return a string of up to {KEY_BYTES} bytes")
        return limited_lane(self.slot, self.name, key)

    def _limit_key(
        self, tell: Callable[..., str], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Call `tell` with the arguments in their order, whether the call names them or not."""
        call = signature_of(self.function).bind_partial(*args, **kwargs)
        if call.kwargs:
            call.apply_defaults()
        try:
            return tell(*call.args, **call.kwargs)
        except TypeError as error:
            message = (
                f"limit_key of task {self.name!r} cannot be called with the positional arguments "
                f"of a call: {error}; write it as lambda tenant, *_, **__: tenant"
            )
            raise BadOption(message) from error

    @property
    def policy(self) -> VerdictPolicy:
        """The settings that the verdict on a run depends on."""
        return VerdictPolicy(self.retry, self.lane)

    @property
    def place(self) -> str:
        """The file and line of the function, for messages."""
        code = getattr(inspect.unwrap(self.function), "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(self.function)


class Registry:
    """The definitions of tasks, by name and alias."""

    def __init__(self) -> None:
        self._definitions: dict[str, Definition] = {}
        self._carriers: dict[str, Carrier] = {}
        self._own: dict[str, None] = {}
        """The names of tasks without a carrier, in order."""
        self.capacities: dict[str, int] = {}
        """The limits of the tasks that have one, by every name and alias."""
        self.names_of: dict[str, tuple[str, ...]] = {}
        """The name and all aliases of the tasks that have aliases, by each of these names."""
        self.lanes: set[str] = set()
        """The lanes of all tasks that were ever defined here."""

    def add(self, definition: Definition) -> None:
        """Register under the name and all aliases. Raise DuplicateTask if one of them is taken."""
        for name in definition.names:
            known = self._definitions.get(name)
            if known is not None and not _is_reimport(known, definition):
                raise DuplicateTask(name, known.place, definition.place)
        self.put(definition)

    def put(self, definition: Definition) -> None:
        """Register under the name and all aliases, and replace earlier definitions."""
        names = definition.names
        for name in names:
            self._definitions[name] = definition
            self.names_of.pop(name, None)
            if len(names) > 1:
                self.names_of[name] = names
            self._own.pop(name, None)
            self._carriers.pop(name, None)
            self.capacities.pop(name, None)
            if definition.limit is not None:
                self.capacities[name] = definition.limit
            if definition.carrier is None:
                self._own[name] = None
            else:
                self._carriers[name] = definition.carrier
        self.lanes.add(definition.slot)

    def get(self, name: str) -> Definition:
        """Return the definition of a name."""
        try:
            return self._definitions[name]
        except KeyError:
            raise TaskNotRegistered(name, tuple(sorted(self._definitions))) from None

    def find(self, name: str) -> Definition | None:
        """Return the definition of a name, if this process has it."""
        return self._definitions.get(name)

    def names(self) -> tuple[str, ...]:
        """Return every name and alias."""
        return tuple(self._definitions)

    def other_names(self, name: str) -> tuple[str, ...]:
        """Return the other names of the task that has this name or alias."""
        known = self._definitions.get(name)
        return () if known is None else known.other_names(name)

    def carriers(self) -> "dict[str, Carrier]":
        """Return the carriers of the tasks that have one, by every name and alias."""
        return dict(self._carriers)

    def own_names(self) -> tuple[str, ...]:
        """Return every name and alias of the tasks without a carrier. Workers claim these."""
        return tuple(self._own)

    def lanes_by_task(self, *, only_carried: bool) -> dict[str, str]:
        """Return the lanes of tasks by every name and alias, optionally only of carried tasks."""
        names = self._carriers if only_carried else self._definitions
        return {name: self._definitions[name].lane for name in names}

    def retentions(self) -> dict[str, float]:
        """Return the retention of the tasks that set one, by every name and alias."""
        return {
            name: known.retention
            for name, known in self._definitions.items()
            if known.retention is not None
        }

    def definitions(self) -> tuple[Definition, ...]:
        """Return every definition once."""
        return tuple({id(known): known for known in self._definitions.values()}.values())


def _is_reimport(known: Definition, new: Definition) -> bool:
    """Return whether two definitions are one function of a module that was imported twice."""
    first, second = known.wrapped or known.function, new.wrapped or new.function
    return first == second or (known.place == new.place and _is_from_reimport(first, second))


def _is_from_reimport(
    first: Any,  # noqa: ANN401 - a function, or what one has captured
    second: Any,  # noqa: ANN401 - as above
    within: tuple[object, ...] = (),
) -> bool:
    """Return whether two functions are the same, or one function of a module imported twice.

    Each import of a module makes its own code objects. This includes the running program if it is
    also imported under its real name. Functions that share a code object come from one import. They
    differ if their captured values, their defaults or the object of a bound method differ.
    """
    if first is second or (type(first) in _PLAIN and type(second) in _PLAIN):
        return bool(first == second)
    if not inspect.isfunction(first) or not inspect.isfunction(second):
        return False
    if first in within:
        return True  # The function has captured itself.
    if first.__qualname__ != second.__qualname__:
        return False
    own, other = _code(inspect.unwrap(first)), _code(inspect.unwrap(second))
    if own is not other:
        # One file can be imported under two names. Its code is equal then.
        return own == other or (_task_module(first) == _task_module(second) and _has_place(own))
    if first.__code__ is not second.__code__ or _defaults(first) != _defaults(second):
        return False
    cells = zip(first.__closure__ or (), second.__closure__ or (), strict=True)
    within = (*within, first)
    return all(_is_from_reimport(_content(one), _content(two), within) for one, two in cells)


def _has_place(code: CodeType | None) -> bool:
    """Return whether no other function has the file and line of this one."""
    # A line may contain several lambdas, and `exec` makes many functions of one "<string>".
    return code is not None and code.co_name != "<lambda>" and not code.co_filename.startswith("<")


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return cell  # The cell is empty.


def _code(function: Callable[..., Any]) -> CodeType | None:
    return getattr(function, "__code__", None)


def _defaults(function: FunctionType) -> tuple[Any, Any]:
    return function.__defaults__, function.__kwdefaults__


def is_local(function: Callable[..., Any]) -> bool:
    """Return whether a function cannot be imported: a lambda, or inside another function."""
    return "<" in function.__qualname__


def task_name(function: Callable[..., Any], *, nested: bool = False) -> str:
    """Return `module:qualname`. Functions of the running program get the name of an import.

    With `nested`, a function inside another one is named by its position there. A registry accepts
    one such task: it refuses a second function from that position with other captured values.
    """
    if is_local(function) and not (nested and "<lambda>" not in function.__qualname__):
        raise BadOption(
            f"{function.__qualname__}() is a lambda or a nested function, so its name is not "
            "unique and another task could replace it: pass name=…, or define it at module level "
            "(if a decorator created it, use functools.wraps in the decorator)"
        )
    return f"{_task_module(function)}:{function.__qualname__}"


def _task_module(function: Callable[..., Any]) -> str:
    """Return the name under which the module of a function is imported."""
    module = function.__module__
    return (main_module_name(module) or module) if module in _PROGRAMS else module


def main_module_name(module: str = "__main__") -> str | None:
    """Return the name under which the running program would be imported."""
    main = sys.modules.get(module)
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        name: str = spec.name
        return name.removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    if file is None:
        return None
    # os.path, since importing pathlib would slow down every program that only enqueues.
    folder, name = os.path.split(os.path.realpath(file))
    parts = [os.path.splitext(name)[0]]  # noqa: PTH122
    while os.path.exists(os.path.join(folder, "__init__.py")):  # noqa: PTH110, PTH118
        folder, name = os.path.split(folder)
        parts.insert(0, name)
    return ".".join(parts)
