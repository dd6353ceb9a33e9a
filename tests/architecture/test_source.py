"""Rules for the source."""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from duly import faultpoints

ROOT = Path(__file__).parents[2]
SOURCES = {"": ROOT / "src" / "duly", "prove/": ROOT / "prove" / "src" / "duly_prove"}
"""The packages. The names of the modules of the second one begin with `prove/`."""
Rule = Callable[[ast.AST], str | None]
"""Returns the problem of a node, or None."""


@cache
def texts() -> dict[str, str]:
    """Return the text of every module. The cache reads each once, and not during collection."""
    return {
        f"{prefix}{path.relative_to(folder)}": path.read_text()
        for prefix, folder in SOURCES.items()
        for path in sorted(folder.rglob("*.py"))
    }


@cache
def modules() -> dict[str, list[ast.AST]]:
    """Return the nodes of every module."""
    return {name: list(ast.walk(ast.parse(text, name))) for name, text in texts().items()}


def violations(rule: Rule, *, but: tuple[str, ...] = ()) -> list[str]:
    """Return every violation of a rule, except in modules whose names start with a given prefix."""
    return [
        f"{name}:{getattr(node, 'lineno', 0)} {problem}"
        for name, nodes in modules().items()
        if not but or not name.startswith(but)
        for node in nodes
        if (problem := rule(node)) is not None
    ]


def imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports, and `module.name` for each imported name."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
        case _:
            return []


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for an expression of that form, else an empty string."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=attr):
            return f"{dotted(value)}.{attr}"
        case _:
            return ""


# -- no code from stored text --

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "jsonpickle", "cloudpickle", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
MAY_IMPORT_BY_NAME = {
    "__init__.py": "our own modules, on the first access to one of their names",
    "cli/": "modules that the user names on the command line, and our own commands",
    "extend/__init__.py": "our own modules, on the first access to one of their names",
    "integrations/django/__init__.py": "our own modules, on the first access to one of their names",
    "integrations/django/task_modules.py": "modules in the settings of the user's project",
    "worker/app_loader.py": "the module that the user names on the command line",
    "worker/runners/process_main.py": "the module of a registered function, from its worker",
    "prove/": "the module that the user names on the command line",
}
"""The modules that may import another module by name. No such name comes from a store."""


def test_the_source_cannot_execute_stored_code():
    def rule(node: ast.AST) -> str | None:
        for name in imported(node):
            if name.partition(".")[0] in FORBIDDEN_MODULES:
                return f"imports {name}"
        if isinstance(node, ast.Call) and dotted(node.func) in FORBIDDEN_CALLS:
            return f"calls {dotted(node.func)}"
        return None

    assert violations(rule) == []


def test_only_listed_modules_import_a_module_by_name():
    def rule(node: ast.AST) -> str | None:
        if isinstance(node, ast.Call) and dotted(node.func).endswith(
            ("import_module", "spec_from_file_location", "run_module", "run_path")
        ):
            return f"calls {dotted(node.func)}"
        return None

    assert violations(rule, but=tuple(MAY_IMPORT_BY_NAME)) == []


def test_the_source_never_uses_a_shell():
    def rule(node: ast.AST) -> str | None:
        if isinstance(node, ast.keyword) and node.arg == "shell":
            return "uses a shell"
        if isinstance(node, ast.Call) and dotted(node.func) in {"os.system", "os.popen"}:
            return f"calls {dotted(node.func)}"
        return None

    assert violations(rule) == []


# -- clocks and random numbers --

CLOCKS = {
    "datetime.now",
    "datetime.utcnow",
    "datetime.today",
    "date.today",
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.perf_counter",
    "uuid.uuid1",
    "uuid.uuid4",
    "os.urandom",
}
MAY_READ_CLOCKS = ("clock.py", "prove/", "cli/")
"""Proofs seed and time their own faults. Commands show the age of records."""


def test_only_the_clock_module_reads_clocks_and_random_numbers():
    def rule(node: ast.AST) -> str | None:
        for name in imported(node):
            if name in CLOCKS or name.partition(".")[0] in {"random", "secrets"}:
                return f"imports {name}"
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if any(name == clock or name.endswith(f".{clock}") for clock in CLOCKS):
                return f"uses {name}"
        return None

    assert violations(rule, but=MAY_READ_CLOCKS) == []


# -- secrets --

MAY_REDACT_CALLS = {
    "core/call_view.py": "knows which calls are hidden entirely",
    "core/payload.py": "the codec of a task",
    "compat/fastapi_taskflow/encryption.py": "a codec around another one",
    "integrations/celery/dead_letters.py": "logs a call of a task whose codec it has in hand",
    "worker/attempt.py": "redacts the error of the attempt that it ran",
}


def test_only_the_call_view_and_codecs_redact_calls():
    def rule(node: ast.AST) -> str | None:
        if isinstance(node, ast.Attribute) and node.attr.startswith("redacted"):
            return f"uses {dotted(node)}"
        return None

    assert violations(rule, but=tuple(MAY_REDACT_CALLS)) == []


# -- sizes --

LINES = 400
FUNCTION_LINES = 70


def test_a_file_has_at_most_400_lines():
    lengths = {name: len(text.splitlines()) for name, text in texts().items()}

    assert {name: length for name, length in lengths.items() if length > LINES} == {}


def test_a_function_has_at_most_70_lines():
    def rule(node: ast.AST) -> str | None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES:
                return f"{node.name} has {length} lines"
        return None

    assert violations(rule) == []


# -- SQL --

STATEMENT = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE TABLE|DROP TABLE)\b")
SQL_FOR_READERS = {
    "cli/db.py": "prints migrations for people to run, without external values",
    "store/sqlite/file_identity.py": "a trigger takes no parameters; its message is quoted",
    "prove/workload.py": "inserts the driver's parameter marks and no values",
}


def test_sql_is_never_built_from_values():
    def rule(node: ast.AST) -> str | None:
        parts: Iterator[ast.expr] = iter(())
        match node:
            case ast.JoinedStr(values=values):
                parts = iter(values)
            case ast.BinOp(left=left, op=ast.Add() | ast.Mod(), right=right):
                parts = iter((left, right))
            case ast.Call(func=ast.Attribute(value=value, attr="format" | "join" | "replace")):
                parts = iter((value,))
        for part in parts:
            if (
                isinstance(part, ast.Constant)
                and isinstance(part.value, str)
                and STATEMENT.search(part.value)
            ):
                return f"builds a statement: {part.value.strip()[:40]!r}"
        return None

    assert violations(rule, but=tuple(SQL_FOR_READERS)) == []


# -- fault points --

TESTS = {
    path: path.read_text()
    for path in (ROOT / "tests").rglob("*.py")
    if "architecture" not in path.parts
}
SWEEPS = ("enqueue.", "claim.", "settle.", "recover.")
"""Verbs whose fault points tests/store/sqlite/test_processes.py tests one by one."""
RUNTIME_SWEEPS = ("beat.", "attempt.", "transaction.")
"""Verbs whose fault points tests/worker/test_faultpoints.py tests one by one."""


def test_every_fault_point_is_hit_by_the_engine():
    literal = {
        ast.literal_eval(node.args[0])
        for nodes in modules().values()
        for node in nodes
        if isinstance(node, ast.Call)
        and dotted(node.func) == "faultpoints.hit"
        and isinstance(node.args[0], ast.Constant)
    }
    # The stores build these names from a verb; test_faultpoints.py checks that all are hit.
    composed = {name for name in faultpoints.NAMES if name.startswith((*SWEEPS, "operate."))}

    assert literal <= set(faultpoints.NAMES)
    assert set(faultpoints.NAMES) - literal - composed == set()


def test_every_fault_point_is_used_by_a_test_or_the_proof():
    tests = "\n".join(TESTS.values())
    sweep = (ROOT / "tests" / "store" / "sqlite" / "test_processes.py").read_text()
    proof = texts()["prove/scenarios/fault_points.py"]
    runtime_sweep = (ROOT / "tests" / "worker" / "test_faultpoints.py").read_text()
    assert "faultpoints.NAMES" in sweep
    assert "faultpoints.NAMES" in proof
    assert all(f'"{verb}"' in runtime_sweep for verb in RUNTIME_SWEEPS)

    unused = [
        name
        for name in faultpoints.NAMES
        if f'"{name}"' not in tests and not name.startswith((*SWEEPS, *RUNTIME_SWEEPS, "operate."))
    ]

    assert unused == []


# -- logs --


def test_only_observers_write_log_lines():
    def rule(node: ast.AST) -> str | None:
        if isinstance(node, ast.Call) and re.fullmatch(
            r"(logger|logging|log|_log|_logger)\.(debug|info|warning|error|exception|log)",
            dotted(node.func),
        ):
            return f"calls {dotted(node.func)}"
        if isinstance(node, ast.Call) and dotted(node.func) == "print":
            return "prints"
        return None

    assert violations(rule, but=("observe/", "context.py", "cli/", "prove/")) == []
