"""How enums, dataclasses and pydantic models that an annotation names are stored.

Stored text names one of these classes but never causes an import. A class must come from the
annotation.
"""

# ruff: noqa: ANN401 - this module handles values of any type

import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from enum import Enum, Flag
from functools import cached_property
from inspect import Signature
from typing import Any, ClassVar, TypeAlias

from duly.core.values import (
    NOT_OURS,
    STORED_TYPES,
    ClassCodec,
    Encoder,
    Unstorable,
    check_scalar,
    decode_fields,
    expect,
)

Known: TypeAlias = dict[type, ClassCodec]
"""The codecs made so far. With them, a class that refers to itself is described only once."""


class AnnotationClasses:
    """The classes that one annotation names. The annotation is resolved on first use."""

    def __init__(self, resolve: Callable[[], Any], known: Known) -> None:
        self._resolve = resolve
        self._known = known

    def annotation(self) -> Any:
        """Return the annotation itself. It may name something that is missing at run time."""
        return self._resolve()

    def codec_for(self, kind: type) -> ClassCodec:
        """Return the codec of this class, or raise Unstorable."""
        shape = self._codecs.get(kind)
        if shape is None:
            raise Unstorable(_why_not(kind))
        if sum(named.__name__ == kind.__name__ for named in self._codecs) > 1:
            raise Unstorable(
                f"has two classes called {kind.__name__} in its annotation; rename one"
            )
        return shape

    def codec_named(self, name: object, tag: str) -> ClassCodec:
        """Return the codec of the class named in stored text, or raise Unstorable."""
        candidates = {
            kind.__name__: shape for kind, shape in self._codecs.items() if shape.tag == tag
        }
        if isinstance(name, str) and name in candidates:
            return candidates[name]
        if len(candidates) == 1:
            # The class was renamed after the text was stored. The annotation has only one
            # candidate.
            return next(iter(candidates.values()))
        raise Unstorable(
            f"is stored as {tag} of a class that its annotation does not name; "
            f"annotate it with that class"
        )

    @cached_property
    def _codecs(self) -> Mapping[type, ClassCodec]:
        try:
            named = list(_classes_in(self._resolve()))
        except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
            raise Unstorable(
                f"has an annotation that cannot be resolved ({error}); import the names that it "
                "uses at run time, not only under TYPE_CHECKING"
            ) from error
        for kind in named:
            if kind not in self._known:
                shape = _shape_for(kind, self._known)
                if shape is not None:
                    self._known[kind] = shape
        return {kind: self._known[kind] for kind in named if kind in self._known}


NO_CLASSES = AnnotationClasses(lambda: None, {})


def resolve_annotation(annotation: Any, namespace: dict[str, Any]) -> Any:
    """Return an annotation with its forward references resolved."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, namespace)["it"]


def _classes_in(annotation: Any) -> Iterator[type]:
    pending = [annotation]
    # Keyed by identity, because a type alias may refer to itself and may not be hashable.
    seen: dict[int, Any] = {}
    while pending:
        hint = pending.pop()
        if id(hint) in seen:
            continue
        seen[id(hint)] = hint
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if isinstance(hint, type):
            yield hint
        elif origin is typing.Literal:
            yield from {type(value) for value in arguments}
        elif origin is typing.Annotated:
            pending.append(arguments[0])
        elif origin is not None:
            pending.extend((origin, *arguments))
        else:
            # A NewType and a `type` statement hide the type that they stand for.
            pending.append(getattr(hint, "__supertype__", None))
            pending.append(getattr(hint, "__value__", None))


def _shape_for(kind: type, known: Known) -> ClassCodec | None:
    if issubclass(kind, Enum):
        return _EnumCodec(kind)
    if _is_pydantic_model(kind):
        return _PydanticCodec(kind, known)
    if dataclasses.is_dataclass(kind):
        return _DataclassCodec(kind, known)
    return None


def _is_pydantic_model(kind: type) -> bool:
    pydantic = sys.modules.get("pydantic")
    base = getattr(pydantic, "BaseModel", None)
    return base is not None and issubclass(kind, base) and hasattr(base, "model_validate")


def _why_not(kind: type) -> str:
    name = kind.__name__
    if issubclass(kind, Enum) or dataclasses.is_dataclass(kind) or _is_pydantic_model(kind):
        return (
            f"is of type {name}, which its annotation does not name; "
            f"annotate it with {name}, or pass a plain value"
        )
    for plain in STORED_TYPES:
        if issubclass(kind, plain):
            return (
                f"is of type {name}, which would be read back as a plain {plain.__name__}; convert "
                "it first"
            )
    return (
        f"is of type {name}, which cannot be stored; pass plain values (an id, not the object), "
        f"or a dataclass that its annotation names"
    )


class _EnumCodec:
    tag: ClassVar[str] = "$enum"
    is_built: ClassVar[bool] = False

    def __init__(self, kind: type[Enum]) -> None:
        self._kind = kind

    def write(self, value: Enum, _encoder: Encoder, _depth: int) -> list[Any]:
        # A member is stored by its name. A combination of flags has no name to look up.
        part = value.value if isinstance(value, Flag) else value.name
        check_scalar(part)
        return [part]

    def read(self, parts: list[Any], _depth: int) -> Enum:
        try:
            (part,) = parts
            return _flags(self._kind, part) if issubclass(self._kind, Flag) else self._kind[part]
        except (ValueError, TypeError, LookupError) as error:
            raise Unstorable(
                f"is stored as a member that {self._kind.__name__} does not have; keep members as "
                "long as stored runs may use them"
            ) from error


def _flags(kind: type[Flag], value: Any) -> Flag:
    found = kind(value)
    # Some Flag classes drop unknown bits, as all of them do before Python 3.11.4. Others return a
    # plain number for values with unknown bits.
    if not isinstance(found, kind) or found.value != value:
        message = f"{value!r} is more than {found!r}"
        raise ValueError(message)
    return found


class _FieldsCodec:
    """The common part of dataclasses and models: named fields, and a constructor that may fail."""

    is_built: ClassVar[bool] = True

    def __init__(self, kind: Any, known: Known) -> None:
        self._kind = kind
        self._known = known
        self._vocabularies: dict[str, AnnotationClasses] = {}

    def _names_of(self, field: str) -> AnnotationClasses:
        if field not in self._vocabularies:
            self._vocabularies[field] = AnnotationClasses(
                lambda: self._annotation(field), self._known
            )
        return self._vocabularies[field]

    def _annotation(self, field: str) -> Any:
        raise NotImplementedError

    def _build(self, fields: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _read_fields(self, fields: object, depth: int) -> Any:
        decoded = decode_fields(fields, self._names_of, depth)
        try:
            return self._build(decoded)
        except Exception as error:  # A constructor is user code and may raise anything.
            # The exception's message may quote values, which may be secret, so only its type is
            # shown.
            raise Unstorable(
                f"cannot be built as {self._kind.__name__} from its stored fields "
                f"({type(error).__name__}); give new fields a default and keep old ones"
            ) from error


class _DataclassCodec(_FieldsCodec):
    tag: ClassVar[str] = "$dataclass"

    def write(self, value: Any, encoder: Encoder, depth: int) -> list[Any]:
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if hasattr(value, field.name)
        }
        return [encoder.walk_fields(fields, self._names_of, depth)]

    def read(self, parts: list[Any], depth: int) -> Any:
        return self._read_fields(parts[0] if len(parts) == 1 else None, depth)

    @cached_property
    def _annotations(self) -> dict[str, Any]:
        return typing.get_type_hints(self._kind, localns={self._kind.__name__: self._kind})

    def _annotation(self, field: str) -> Any:
        return self._annotations.get(field)

    def _build(self, fields: dict[str, Any]) -> Any:
        later = {field.name for field in dataclasses.fields(self._kind) if not field.init}
        built = self._kind(**{name: fields[name] for name in fields if name not in later})
        for name in later & fields.keys():
            object.__setattr__(built, name, fields[name])
        return built


class _PydanticCodec(_FieldsCodec):
    tag: ClassVar[str] = "$model"

    def write(self, value: Any, encoder: Encoder, depth: int) -> list[Any]:
        fields = {name: getattr(value, name) for name in self._kind.model_fields}
        encoded = encoder.walk_fields(
            {**fields, **(value.model_extra or {})}, self._names_of, depth
        )
        unset = sorted(fields.keys() - value.model_fields_set)
        return [encoded, unset] if unset else [encoded]

    def read(self, parts: list[Any], depth: int) -> Any:
        if len(parts) not in (1, 2):
            raise Unstorable(f"is not stored in the form of a model; {NOT_OURS}")
        unset = expect(list, parts[1]) if len(parts) > 1 else []
        built = self._read_fields(parts[0], depth)
        # Fields that the caller had not set must not look set. Otherwise exclude_unset would give a
        # different result.
        built.model_fields_set.difference_update(name for name in unset if type(name) is str)
        return built

    @cached_property
    def _is_found_by_name(self) -> bool:
        return "by_name" in inspect.signature(self._kind.model_validate).parameters

    def _annotation(self, field: str) -> Any:
        described = self._kind.model_fields.get(field)
        return None if described is None else described.annotation

    def _build(self, fields: dict[str, Any]) -> Any:
        if self._kind.__pydantic_root_model__:
            return self._kind.model_validate(fields["root"])
        if self._is_found_by_name:
            return self._kind.model_validate(fields, by_name=True, by_alias=False)
        # Before pydantic 2.11, a field with an alias is found only by its alias.
        aliases = {
            name: field.validation_alias
            for name, field in self._kind.model_fields.items()
            if isinstance(field.validation_alias, str)
        }
        return self._kind.model_validate({aliases.get(name, name): fields[name] for name in fields})


def signature_of(function: Callable[..., Any]) -> Signature:
    """Return a function's signature. Annotations that cannot be resolved yet remain names."""
    if sys.version_info >= (3, 14):
        # Otherwise every forward reference would already have to exist.
        from annotationlib import Format  # noqa: PLC0415 - new in 3.14

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)
