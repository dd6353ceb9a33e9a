"""Reads the options of a call.

Names, types and defaults come from the signature. The meanings come from the section `Args:` of the
docstring, which `help()` and editors show too.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from typing import NamedTuple

from tools.reference import source
from tools.reference.source import Found

_ARGS = "\n\nArgs:\n"
_MEANING = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


class Option(NamedTuple):
    """An option of a call. `default` is empty if the call needs it."""

    name: str
    type: str
    default: str = ""


def meanings(words: str) -> dict[str, str]:
    """Return the meanings in a docstring, by the names of the options."""
    described = _MEANING.findall(words.partition(_ARGS)[2])
    return {name: " ".join(text.split()) for name, text in described}


def without_options(words: str) -> str:
    """Return a docstring without the meanings of options."""
    return words.partition(_ARGS)[0]


def options(found: Found) -> Iterator[Option]:
    """Yield the options of a function or of a dataclass."""
    match found.node:
        case ast.FunctionDef(args=arguments) | ast.AsyncFunctionDef(args=arguments):
            positional = [*arguments.posonlyargs, *arguments.args]
            missing = [None] * (len(positional) - len(arguments.defaults))
            pairs = [
                *zip(positional, [*missing, *arguments.defaults], strict=True),
                *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
            ]
            for argument, default in pairs:
                if argument.arg not in {"self", "cls"}:
                    yield _option(found, argument.arg, argument.annotation, default)
            match arguments.kwarg:
                case ast.arg(annotation=ast.Subscript(ast.Name("Unpack"), ast.Name(unpacked))):
                    yield from options(source.find(found.module, unpacked))
        case ast.ClassDef(body=body):
            for item in body:
                match item:
                    case ast.AnnAssign(ast.Name(name), annotation, default):
                        yield _option(found, name, annotation, default)


def _option(
    found: Found, name: str, annotation: ast.expr | None, default: ast.expr | None
) -> Option:
    match annotation:
        case None:
            kind = ""
        case ast.Constant(str(text)):
            kind = text
        case _:
            kind = ast.unparse(annotation)
    match default:
        case None:
            return Option(name, kind)
        case ast.Name(constant):
            return Option(name, kind, repr(getattr(import_module(found.module), constant)))
        case _:
            return Option(name, kind, ast.unparse(default))
