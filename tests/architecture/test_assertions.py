"""Every test asserts something: it cannot pass just because nothing was raised."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
CHECKS = {"raises", "warns", "fail", "expect", "run_state_machine_as_test"}
"""Functions of pytest, Playwright and Hypothesis that fail a test."""
CHECK_NAME = re.compile(r"_?(assert|check|wait_until)(_|$)")
"""The names of our own functions that fail a test."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions_of(tree: ast.Module) -> Iterator[Function]:
    """Yield the tests of a module and of its classes, but no functions inside tests."""
    for node in tree.body:
        for found in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(found, Function) and found.name.startswith("test_"):
                yield found


def name_of(call: ast.Call) -> str:
    """Return the name of a called function or method."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def is_assertion(node: ast.AST) -> bool:
    """Return whether a test fails at this node if the code is wrong."""
    if isinstance(node, ast.Call):
        name = name_of(node)
        return name in CHECKS or CHECK_NAME.match(name) is not None
    return isinstance(node, ast.Assert)


def test_every_test_asserts_something():
    without = [
        f"{path.relative_to(TESTS)}:{function.lineno} {function.name}"
        for path in sorted(TESTS.rglob("test_*.py"))
        for function in functions_of(ast.parse(path.read_text(), str(path)))
        if not any(is_assertion(node) for node in ast.walk(function))
    ]

    assert without == []


def test_a_call_is_no_assertion_unless_its_name_says_so():
    def asserts(text: str) -> bool:
        return any(is_assertion(node) for node in ast.walk(ast.parse(text)))

    assert asserts("with pytest.raises(ValueError): read()")
    assert asserts("asyncio.run(self._check_run(run))")
    assert not asserts("store.checkpoint(); run.result(timeout=20)")
