"""Converts the arguments and the result of one function to stored text and back.

The text is JSON, `[[positional…],{"name":value,…}]`. Parameters are stored by name where possible,
so that equal calls give equal text. Defaults are omitted, so that a changed default also applies to
runs that are already queued.
"""

# ruff: noqa: ANN401 - this module handles values of any type

import inspect
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from inspect import Parameter, Signature
from typing import Any, NoReturn

from duly.core.class_codecs import AnnotationClasses, Known, resolve_annotation, signature_of
from duly.core.display import display
from duly.core.json_text import from_text, sha256, size_of, to_canonical_text, to_text
from duly.core.redaction import Redaction, TextRedactor, text_redactor
from duly.core.secret_names import REDACTED, is_secret
from duly.core.stored_values import (
    decode_one,
    decode_value,
    encode_one,
    encode_value,
    fingerprint_of,
    too_large,
)
from duly.core.type_checks import check_type
from duly.core.values import (
    INT_MAX,
    INT_MIN,
    NOT_OURS,
    SCALARS,
    Encoder,
    Unstorable,
    check_scalar,
    decode,
)
from duly.errors import BadArguments, BadOption, PayloadError
from duly.limits import PAYLOAD_BYTES, RESULT_BYTES

__all__ = ["REDACTED", "CallCodec", "decode_value", "display", "encode_value", "fingerprint_of"]


_STORED_CALL = "stored arguments"
_RESULT = "return value"
_PROBLEM_CHARACTERS = 200


class CallCodec:
    """Converts the arguments and the result of one function to stored text and back."""

    def __init__(
        self,
        function: Callable[..., Any] | Signature,
        *,
        redact: Sequence[str] = (),
        without: str | None = None,
    ) -> None:
        """Take a function, or its signature if the signature's annotations are classes.

        The framework passes the parameter `without`, so calls do not contain it.
        """
        self._function_name = getattr(function, "__qualname__", type(function).__name__)
        namespace: dict[str, Any] = {}
        if isinstance(function, Signature):
            self._signature = function
        else:
            self._signature = signature_of(function)
            namespace = getattr(inspect.unwrap(function), "__globals__", {})
        parameters = self._signature.parameters
        if without is not None:
            kept = [parameter for name, parameter in parameters.items() if name != without]
            self._signature = self._signature.replace(parameters=kept)
            parameters = self._signature.parameters
        for name in redact:
            if name not in parameters:
                raise BadOption(f"{self._function_name}() has no parameter {name!r} to redact")
        self._redacted_parameters = frozenset(redact) | frozenset(filter(is_secret, parameters))
        self._redaction = Redaction(self._redacted_parameters)

        kinds = {name: parameter.kind for name, parameter in parameters.items()}
        names_of = {kind: tuple(n for n in kinds if kinds[n] is kind) for kind in kinds.values()}
        self._position_only = names_of.get(Parameter.POSITIONAL_ONLY, ())
        either = names_of.get(Parameter.POSITIONAL_OR_KEYWORD, ())
        keyword_only = names_of.get(Parameter.KEYWORD_ONLY, ())
        self._by_position = self._position_only + either
        self._by_keyword = frozenset(either + keyword_only)
        self._in_order = self._by_position + keyword_only
        self._rest = next(iter(names_of.get(Parameter.VAR_POSITIONAL, ())), "")
        self._extra = next(iter(names_of.get(Parameter.VAR_KEYWORD, ())), "")
        self._required = frozenset(
            name for name in self._in_order if parameters[name].default is Parameter.empty
        )
        positions = [
            self._by_position.index(name) + 1 if name in self._by_position else sys.maxsize
            for name in self._required
        ]
        self._enough = max(positions, default=0)
        """The number of positional arguments that provides every required parameter."""
        has_only_names = self._required <= self._by_keyword
        self._required_by_keyword = self._required if has_only_names else None
        """The names that a call must provide, if all of them can be given by name.

        Most calls provide exactly these.
        """

        known: Known = {}
        annotations = {name: parameter.annotation for name, parameter in parameters.items()}
        annotations[_RESULT] = self._signature.return_annotation
        self._vocabularies = {
            name: AnnotationClasses(partial(resolve_annotation, annotation, namespace), known)
            for name, annotation in annotations.items()
        }

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the text to store for a call with these arguments."""
        named, rest, extra = self._bind(args, kwargs)
        if not rest and not extra and not self._position_only and _are_plain(named.values()):
            text = f"[[],{to_text(named)}]"
            # JSON escapes a NUL. A lone surrogate is found when the bytes are counted.
            size = len(text) if text.isascii() else size_of(text)
            if "\\u0000" not in text and size <= PAYLOAD_BYTES:
                return text
        return self._encode_thoroughly(named, rest, extra)

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a hash that is equal for calls with equal arguments, including defaults."""
        named, rest, extra = self._bind(args, kwargs)
        encoder = Encoder(PAYLOAD_BYTES, canonical=True)
        by_name, collected, others = self._encode_parts(encoder, named, rest, extra)
        return sha256(to_canonical_text([self._default_data | by_name, collected, others]))

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and the named arguments of a stored call."""
        positional, named = self._parse(text)
        is_clean = "\\u" not in text and (text.isascii() or size_of(text) < math.inf)
        if is_clean and not positional and _are_plain(named.values()):
            return (), named
        args = tuple(
            self._decode_one(self._label_at(index), data, self._parameter_at(index))
            for index, data in enumerate(positional)
        )
        return args, {
            name: self._decode_one(name, data, self._parameter_called(name))
            for name, data in named.items()
        }

    def from_json(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values that JSON arguments stand for, checked against the signature.

        Types that JSON lacks use their stored form, such as `{"$date": "2030-01-31"}`. So arguments
        that duly printed as JSON can be passed back.
        """
        # Checking the new call first gives a clearer error than checking stored text.
        self.encode(tuple(args), kwargs)
        found, named = self.decode(to_text([list(args), kwargs]))
        for index, value in enumerate(found):
            self._check_type(self._label_at(index), value, self._parameter_at(index))
        for name, value in named.items():
            self._check_type(name, value, self._parameter_called(name))
        return found, named

    def redacted(self, text: str) -> str:
        """Return stored text with secrets replaced, or entirely replaced if it cannot be parsed."""
        try:
            hidden, shown = self._parted(text)
            text = to_text(self._redaction.data(shown, text_redactor(hidden)))
        except (PayloadError, ValueError, RecursionError):
            return REDACTED
        return text if size_of(text) < math.inf else REDACTED

    def redacted_result(self, text: str | None, arguments: str) -> str | None:
        """Return the stored result of a call with secrets replaced."""
        return None if text is None else self._redaction.text(text, self._redactor_for(arguments))

    def redacted_text(self, text: str, arguments: str) -> str:
        """Return a text about a call, such as an error, with the call's secrets replaced."""
        return self._redactor_for(arguments)(text)

    def encode_result(self, value: object) -> str | None:
        """Return the text to store for a result, or None for None."""
        if value is None:
            return None
        return encode_one(_RESULT, value, self._vocabularies[_RESULT], RESULT_BYTES)

    def decode_result(self, text: str | None) -> Any:
        """Return the value of a stored result."""
        return None if text is None else decode_one(_RESULT, text, self._vocabularies[_RESULT])

    def seal(self, text: str) -> str:
        """Return the text to store for a text of a call. This codec does not encrypt."""
        return text

    def unseal(self, text: str) -> str:
        """Return the text that `seal` was given."""
        return text

    def _bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]:
        """Return the named arguments in signature order, and those that `*` and `**` collect."""
        named = dict(zip(self._by_position, args, strict=False))
        if not kwargs and self._enough <= len(args) <= len(self._by_position):
            return named, (), {}
        rest = args[len(self._by_position) :]
        extra: dict[str, Any] = {}
        if kwargs:
            for name, value in kwargs.items():
                if name in self._by_keyword and name not in named:
                    named[name] = value
                elif name in self._by_keyword or not self._extra or type(name) is not str:
                    self._refuse_call(args, kwargs)
                else:
                    extra[name] = value
            named = {name: named[name] for name in self._in_order if name in named}
        if not named.keys() >= self._required or (rest and not self._rest):
            self._refuse_call(args, kwargs)
        return named, rest, extra

    def _refuse_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            problem = str(error)[:_PROBLEM_CHARACTERS]
        else:
            problem = "the arguments do not fit"
        takes = ", ".join(
            f"{name}=…" if name in self._in_order and name not in self._required else name
            for name in self._signature.parameters
        )
        raise BadArguments(f"{self._function_name}(): {problem}; it takes ({takes})")

    def _encode_thoroughly(
        self, named: dict[str, Any], rest: tuple[Any, ...], extra: dict[str, Any]
    ) -> str:
        by_name, collected, others = self._encode_parts(Encoder(PAYLOAD_BYTES), named, rest, extra)
        # Only position identifies the items of *args, so all parameters before them are stored
        # positionally too.
        leading = self._by_position if rest else self._position_only
        positional = [by_name.pop(name) for name in leading if name in by_name] + collected
        by_name |= others
        text = to_text([positional, by_name])
        size = size_of(text)
        if size > PAYLOAD_BYTES:
            sizes = {self._label_at(i): len(to_text(data)) for i, data in enumerate(positional)}
            sizes |= {name: len(to_text(data)) for name, data in by_name.items()}
            raise too_large(max(sizes, key=sizes.__getitem__), size, PAYLOAD_BYTES)
        return text

    def _encode_parts(
        self, encoder: Encoder, named: dict[str, Any], rest: tuple[Any, ...], extra: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        return (
            {name: self._encode_one(encoder, name, value, name) for name, value in named.items()},
            [
                self._encode_one(encoder, f"{self._rest}[{index}]", value, self._rest)
                for index, value in enumerate(rest)
            ],
            {
                name: self._encode_one(encoder, name, value, self._extra)
                for name, value in extra.items()
            },
        )

    @cached_property
    def _default_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name in self._in_order:
            if name not in self._required:
                default = self._signature.parameters[name].default
                # A default that cannot be stored cannot be passed as an argument either. So
                # omitting it distinguishes it from every value that can be passed.
                with suppress(Unstorable):
                    data[name] = Encoder(PAYLOAD_BYTES, canonical=True).encode(
                        default, self._vocabularies[name]
                    )
        return data

    def _encode_one(self, encoder: Encoder, label: str, value: object, parameter: str) -> Any:
        try:
            check_scalar(label)
            return encoder.encode(value, self._vocabularies[parameter])
        except Unstorable as refusal:
            raise self._error(refusal, label, parameter) from self._cause(refusal, parameter)

    def _decode_one(self, label: str, data: object, parameter: str) -> Any:
        try:
            check_scalar(label)
            return decode(data, self._vocabularies[parameter])
        except Unstorable as refusal:
            raise self._error(refusal, label, parameter) from self._cause(refusal, parameter)

    def _check_type(self, label: str, value: object, parameter: str) -> None:
        if value is not None or self._signature.parameters[parameter].default is not None:
            try:
                check_type(value, self._vocabularies[parameter].annotation)
            except Unstorable as refusal:
                raise self._error(refusal, label, parameter) from None

    def _error(self, refusal: Unstorable, label: str, parameter: str) -> PayloadError:
        # The path may quote keys of a dict, and the cause may quote any value. Neither may be shown
        # for a redacted parameter.
        if parameter in self._redacted_parameters:
            refusal.trail.clear()
        return PayloadError(refusal.path(label), refusal.problem)

    def _cause(self, refusal: Unstorable, parameter: str) -> BaseException | None:
        return None if parameter in self._redacted_parameters else refusal.__cause__

    def _redactor_for(self, arguments: str) -> TextRedactor:
        try:
            hidden, _ = self._parted(arguments)
        except (PayloadError, RecursionError):
            # If the arguments do not fit the signature, it is unknown which of them are redacted.
            # So all of them are hidden.
            with suppress(ValueError, RecursionError):
                return text_redactor(self._redaction.secrets(from_text(arguments), hidden=True))
            return str
        return text_redactor(hidden)

    def _parted(self, text: str) -> tuple[list[str], list[Any]]:
        """Return the secret texts of a stored call, and the call without redacted arguments."""
        positional, named = self._parse(text)
        places: list[tuple[Any, Any, str]] = [
            *((positional, index, self._parameter_at(index)) for index in range(len(positional))),
            *((named, name, self._parameter_called(name)) for name in named),
        ]
        secrets = list(self._redaction.secrets([positional, named]))
        for where, place, parameter in places:
            if parameter in self._redacted_parameters:
                secrets += self._redaction.secrets(where[place], hidden=True)
                where[place] = REDACTED
        return secrets, [positional, named]

    def _parse(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the JSON data of a stored call, checked against the signature."""
        try:
            data = from_text(text)
        except ValueError as error:
            raise PayloadError(_STORED_CALL, f"{error}; {NOT_OURS}") from None
        is_call = type(data) is list and len(data) == 2 and type(data[0]) is list  # noqa: PLR2004
        if not is_call or type(data[1]) is not dict:
            raise PayloadError(_STORED_CALL, f"not of the form [[…],{{…}}]; {NOT_OURS}")
        positional, named = data
        if not positional and (
            named.keys() == self._required_by_keyword or self._are_all_named(named)
        ):
            return positional, named
        try:
            self._bind(tuple(positional), named)
        except BadArguments as error:
            raise PayloadError(
                _STORED_CALL,
                f"do not fit the current function: {error}; keep old parameters as long as stored "
                "runs may use them",
            ) from None
        return positional, named

    def _are_all_named(self, named: dict[str, Any]) -> bool:
        names = named.keys()
        return names >= self._required and names <= self._by_keyword

    def _parameter_at(self, index: int) -> str:
        return self._by_position[index] if index < len(self._by_position) else self._rest

    def _parameter_called(self, name: str) -> str:
        return name if name in self._by_keyword else self._extra

    def _label_at(self, index: int) -> str:
        beyond = index - len(self._by_position)
        return self._by_position[index] if beyond < 0 else f"{self._rest}[{beyond}]"


def _are_plain(values: Iterable[Any]) -> bool:
    """Return whether all values are scalars within their bounds. Texts are not inspected."""
    for value in values:
        kind = type(value)
        if kind is int:
            if not INT_MIN <= value <= INT_MAX:
                return False
        elif kind is float:
            if not math.isfinite(value):
                return False
        elif kind not in SCALARS:
            return False
    return True
