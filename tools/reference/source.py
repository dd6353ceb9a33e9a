"""Reads the public names, signatures and docstrings of modules without importing them.

So nothing has to be installed, and the pages are the same under every version of Python.
"""

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[2] / "src"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Found(NamedTuple):
    """A public name, and its definition in the code."""

    name: str
    node: ast.stmt
    words: str
    """The docstring, or for a value the text after it."""
    module: str
    """Where it is defined."""


@cache
def module(name: str) -> ast.Module:
    """Parse a module."""
    path = SOURCE.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(), str(file))


def words_of(name: str) -> str:
    """Return the docstring of a module."""
    return ast.get_docstring(module(name)) or ""


def offered(name: str) -> list[str]:
    """Return the names in the `__all__` of a module, or else the public names that it defines."""
    body = module(name).body
    for node in body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__":
            return [str(item) for item in ast.literal_eval(node.value)]
    own = [node for node in body if isinstance(node, Function | ast.ClassDef)]
    return [node.name for node in own if not node.name.startswith("_")]


def find(name: str, wanted: str) -> Found:
    """Find the definition of a name that a module offers. Follow its imports."""
    body = list(_statements(module(name)))
    for node, following in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if node.name == wanted:
                return Found(wanted, node, ast.get_docstring(node) or "", name)
            case ast.ImportFrom(module=str(source), names=names):
                for alias in names:
                    if (alias.asname or alias.name) == wanted and source.startswith("duly"):
                        return find(source, alias.name)._replace(name=wanted)
            case ast.Assign() | ast.AnnAssign() if wanted in _targets(node):
                return Found(wanted, node, _text_after(following), name)
    raise LookupError(f"{name} offers {wanted}, which is not found in the code of duly")


def members(found: Found) -> Iterator[Found]:
    """Yield the public members of a class that have a docstring, in their order."""
    node = found.node
    if not isinstance(node, ast.ClassDef):
        raise TypeError(f"{found.module}.{found.name} is no class")
    for item, following in zip(node.body, [*node.body[1:], None], strict=True):
        match item:
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not item.name.startswith("_"):
                words = ast.get_docstring(item)
                if words:
                    yield Found(item.name, _as_called(node, item), words, found.module)
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield Found(name, item, _text_after(following), found.module)
    for base in _bases(found.module, node):
        yield from (member for member in members(base) if member.words)


def initializer(found: Found) -> Found:
    """Return the definition with the options of a class: its `__init__`, or a dataclass itself."""
    for item in getattr(found.node, "body", ()):
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return Found(found.name, item, ast.get_docstring(item) or "", found.module)
    return found


def signature(node: Function, *, name: str | None = None) -> str:
    """Return how a function is called."""
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in {"self", "cls"}:
            group.pop(0)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    prefix = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{prefix}{name or node.name}({ast.unparse(arguments)}){returns}"


def decorators(node: Function | ast.ClassDef) -> list[ast.expr]:
    """Return the decorators, without their arguments."""
    return [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]


def constructor(node: ast.ClassDef) -> str | None:
    """Return how users call a class. None if they do not."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return signature(item, name=node.name).removesuffix(" -> None")
    is_record = any("dataclass" in ast.unparse(each) for each in decorators(node)) or any(
        ast.unparse(base) == "NamedTuple" for base in node.bases
    )
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    if not is_record:
        return None
    return f"{node.name}({', '.join(ast.unparse(field) for field in fields)})"


def _bases(name: str, node: ast.ClassDef) -> Iterator[Found]:
    """Find the bases of a class that are classes of duly."""
    for base in node.bases:
        with suppress(LookupError):
            yield find(name, ast.unparse(base))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those for type checkers or under `with extra(…)`."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from node.body


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text_after(node: ast.stmt | None) -> str:
    match node:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return cleandoc(text)
        case _:
            return ""


def _as_called(node: ast.ClassDef, function: Function) -> Function:
    """Return the overload with the most parameters, if there are any. It is what users see."""
    overloads = [
        item
        for item in node.body
        if isinstance(item, Function)
        and item.name == function.name
        and any(getattr(each, "id", "") == "overload" for each in decorators(item))
    ]
    return max(overloads, key=lambda item: len(ast.unparse(item.args)), default=function)
