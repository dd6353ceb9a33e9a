"""What the source must and must not contain."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "duly"
MODULES = sorted(SOURCE.rglob("*.py"))
SQL = sorted(SOURCE.rglob("*.sql"))

FORBIDDEN_MODULES = {"pickle", "marshal", "shelve", "dill", "jsonpickle", "cloudpickle", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec"}
CLOCKS = {
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("date", "today"),
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "monotonic"),
    ("uuid", "uuid4"),
    ("uuid", "uuid1"),
    ("random", "random"),
    ("random", "uniform"),
}
MAY_READ_CLOCKS = ("clock.py", "prove/", "cli/")
"""Proofs seed and time their own strikes; commands show how long ago something was."""

LINES = 400
FUNCTION_LINES = 70


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_can_run_code_that_was_stored(path):
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN_MODULES
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in FORBIDDEN_CALLS


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_clock_module_reads_clocks_and_dice(path):
    if name_of(path).startswith(MAY_READ_CLOCKS):
        return
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert (node.value.id, node.attr) not in CLOCKS, f"line {node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_file_has_at_most_400_lines_and_a_function_70(path):
    assert len(path.read_text().splitlines()) <= LINES
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES, f"{node.name} has {length}"


SQL_FOR_READERS = {
    "cli/db.py": "prints migrations for people to run; nothing in it comes from outside",
    "prove/workload.py": "puts in the driver's parameter marks, no values",
}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_sql_is_never_put_together_from_values(path):
    if name_of(path) in SQL_FOR_READERS:
        return
    keywords = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM)\b")
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.JoinedStr):
            constants = [part.value for part in node.values if isinstance(part, ast.Constant)]
            assert not keywords.search(" ".join(map(str, constants))), f"line {node.lineno}"


def statements(dialect: str) -> dict[str, str]:
    found = {}
    for path in (SOURCE / "store" / dialect / "sql").glob("*.sql"):
        parts = re.split(r"^-- :name (\w+)$", path.read_text(), flags=re.MULTILINE)
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            found[f"{path.stem}.{name}"] = re.sub(r"--[^\n]*", "", body)
    return found


def test_both_dialects_have_the_same_files():
    names = {
        dialect: {path.name for path in (SOURCE / "store" / dialect / "sql").glob("*.sql")}
        for dialect in ("sqlite", "postgres")
    }

    assert names["sqlite"] <= names["postgres"]


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_only_a_claim_makes_a_run_running(dialect):
    for name, body in statements(dialect).items():
        if re.search(r"SET\s+state\s*=\s*'running'", body):
            assert name.startswith("claim."), name


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_write_about_a_running_run_names_its_claim(dialect):
    for name, body in statements(dialect).items():
        writes = re.search(r"\b(UPDATE|DELETE FROM) duly_runs\b", body)
        if writes and "'running'" in body and not name.startswith("claim."):
            # Asking for a cancel is the one thing anybody may do to a run that somebody runs.
            assert "claim_number" in body or "cancel_requested" in body, name


def test_every_fault_point_is_hit_by_the_engine_and_struck_by_a_test():
    source = "\n".join(path.read_text() for path in MODULES)
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    tests += "\n".join(path.read_text() for path in (SOURCE / "prove").rglob("*.py"))
    tree_of_points = tree(SOURCE / "faultpoints.py")
    names = next(
        ast.literal_eval(node.value)
        for node in tree_of_points.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "NAMES"
    )
    for name in names:
        verb, moment = name.split(".")
        assert f'hit("{name}")' in source or f".{moment}" in source, name
        assert name in tests or "faultpoints.NAMES" in tests or "NAMES" in tests, (name, verb)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_observers_write_log_lines(path):
    name = name_of(path)
    if name.startswith(("observe/", "context.py", "cli/", "prove/")):
        return
    calls = re.findall(
        r"\b(?:logger|logging)\.(?:debug|info|warning|error|log)\(", path.read_text()
    )
    assert not calls
