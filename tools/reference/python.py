"""Writes the pages on the names that programs import."""

import ast
from collections.abc import Iterator
from dataclasses import fields
from typing import NamedTuple

from duly.settings import Settings
from tools.reference import source
from tools.reference.options import meanings, options, without_options
from tools.reference.source import Found, Function
from tools.reference.tables import shown, table


class Handle(NamedTuple):
    """An object that users get from duly and do not make: the expression for it, and its class."""

    said: str
    module: str
    name: str


HANDLES = (
    Handle("app.runs", "duly.api.runs", "Runs"),
    Handle("app.dead", "duly.api.dead", "DeadRuns"),
    Handle("app.queues", "duly.api.queues", "Queues"),
    Handle("app.workers", "duly.api.queues", "Workers"),
    Handle("app.schedules", "duly.api.schedules", "Schedules"),
    Handle("@app.cron(…)", "duly.api.schedule_options", "ScheduleOptions"),
    Handle("app.worker()", "duly.worker.embedded_worker", "EmbeddedWorker"),
    Handle("app.lock()", "duly.locks.lock", "Lock"),
    Handle("app.lock().acquire()", "duly.locks.held_lock", "HeldLock"),
    Handle("duly.current()", "duly.context", "RunContext"),
    Handle("run.why()", "duly.core.why", "Reason"),
    Handle("run.attempts()", "duly.core.record", "AttemptRecord"),
    Handle("run.steps()", "duly.core.record", "StepRecord"),
    Handle("run.logs()", "duly.core.record", "LogLine"),
    Handle("app.runs.list()", "duly.api.runs", "Page"),
    Handle("app.dead.groups()", "duly.core.record", "DeadLetterGroup"),
    Handle("app.dead.retry()", "duly.api.dead", "BulkResult"),
    Handle("app.queues.list()", "duly.core.record", "QueueRecord"),
    Handle("app.workers.list()", "duly.core.record", "WorkerRecord"),
    Handle("app.schedules.list()", "duly.api.schedule_views", "ScheduleView"),
    Handle("app.schedules.firings()", "duly.api.schedule_views", "FiringView"),
)
INTEGRATIONS = (
    "duly.dashboard",
    "duly.integrations.fastapi",
    "duly.integrations.django",
    "duly.integrations.celery",
    "duly.integrations.rq",
    "duly.integrations.dramatiq",
    "duly.integrations.sqlalchemy",
    "duly.integrations.http_idempotency",
    "duly.compat.async_scheduler",
    "duly.compat.fastapi_taskflow",
)
OF_THE_ENGINE = {
    "Duly": {"use_url"},
    "EmbeddedWorker": {"carry", "leased_id", "limit_queue"},
    "Filter": {"resolve"},
    "Guard": {"call_ledger", "enter", "ledger"},
    "PostgresTestStore": {"advance", "clock", "freeze", "remove"},
    "RunContext": {
        "abandon_transaction",
        "begin_transaction",
        "has_steps",
        "joined",
        "open_steps",
        "record_step",
        "steps",
        "store",
        "unused_steps",
        "use_step",
        "wait_until",
    },
    "Runs": {"page"},
    "Schedules": {"define", "is_defined", "sync"},
    "SqliteTestStore": {"advance", "freeze", "remove"},
}
"""Members without an underscore, because other parts of duly call them. They are not for users."""
MADE_BY_DULY = {"CarrierMessage", "EmbeddedWorker", "EndedAttempt", "GuardClaim", "Run", "Task"}
"""Classes that users do not call."""


def python_page() -> str:
    """Return the page on duly itself, its guard, its testing kit and its extension points."""
    parts = ["# Python", "`import duly`. Errors have [a page of their own](errors.md)."]
    parts += _module("duly", level=2)
    parts.append("## Objects that you get from duly")
    for handle in HANDLES:
        found = source.find(handle.module, handle.name)
        parts += [f"### `{handle.said}`", found.words, *_members(found)]
    for name in ("duly.guard", "duly.testing", "duly.extend"):
        parts += _module(name, level=2)
    return _joined(parts)


def integrations_page() -> str:
    """Return the page on the integrations with other engines and frameworks."""
    parts = [
        "# Integrations",
        "Most of these modules need another package, which an extra of duly installs.",
    ]
    for name in INTEGRATIONS:
        parts += _module(name, level=2)
    return _joined(parts)


def _module(name: str, *, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{name}`"
    yield source.words_of(name)
    for wanted in source.offered(name):
        found = source.find(name, wanted)
        if not _is_error(found):
            yield from _described(found, level + 1)


def _described(found: Found, level: int) -> Iterator[str]:
    yield f"{'#' * level} `{found.name}`"
    match found.node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield f"`{source.signature(found.node)}`"
            yield found.words
        case ast.ClassDef():
            made = source.constructor(found.node)
            if made is not None and found.name not in MADE_BY_DULY:
                yield f"`{made}`"
            yield without_options(found.words)
            yield from _members(found)
        case _:
            yield found.words or f"`{ast.unparse(found.node)}`"


def _members(owner: Found) -> Iterator[str]:
    made = source.initializer(owner)
    lines, tables = [], [*_options(made, owner.name)]
    for member in source.members(owner):
        if member.name in {*OF_THE_ENGINE.get(owner.name, ()), *meanings(owner.words)}:
            continue
        said, words = _said(member.node), " ".join(without_options(member.words).split())
        title = f"{owner.name}.{member.name}"
        described = [*_options(member, title)]
        if described:
            anchor = f"options-of-{title.replace('.', '')}".lower()
            said, words = f"{member.name}(…)", f"{words} See [its options](#{anchor})."
            tables += described
        lines.append(f"- `{said}`" + (f": {words}" if words else ""))
    if lines:
        yield "\n".join(lines)
    yield from tables


def _options(found: Found, title: str) -> Iterator[str]:
    """Yield a table of the options of a call, if its docstring describes them."""
    meaning = meanings(found.words)
    if not meaning:
        return
    yield f"#### Options of `{title}`"
    defaults = {}
    if found.name == "Duly":
        yield without_options(found.words)
        defaults = {each.name: shown(each.default) for each in fields(Settings)}
    rows = []
    for each in options(found):
        default = defaults.get(each.name, each.default)
        shown_default = f"`{default}`" if default else "required"
        rows.append((f"`{each.name}`", f"`{each.type}`", shown_default, meaning[each.name]))
    yield table(("Option", "Type", "Default", "Meaning"), rows)


def _said(node: ast.stmt) -> str:
    """Return how a member is used."""
    if not isinstance(node, Function):
        return ast.unparse(node)
    is_property = any("property" in ast.unparse(each) for each in node.decorator_list)
    if is_property and node.returns is not None:
        return f"{node.name}: {ast.unparse(node.returns)}"
    return source.signature(node)


def _is_error(found: Found) -> bool:
    return isinstance(found.node, ast.ClassDef) and any(
        isinstance(base, ast.Name) and base.id in _ERRORS for base in found.node.bases
    )


_ERRORS = {"DulyError", *source.offered("duly.errors")}


def _joined(parts: list[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
