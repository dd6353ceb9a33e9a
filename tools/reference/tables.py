"""Writes the pages that are tables: settings, limits, errors, metrics and fault points."""

import ast
from collections.abc import Iterable
from dataclasses import fields
from tempfile import TemporaryDirectory
from textwrap import dedent

from prometheus_client.core import Metric

from duly import Duly, errors, faultpoints, limits
from duly.cli.failures import status_of
from duly.observe.metrics import DulyCollector
from duly.settings import PREFIX, AppOptions, Settings
from tools.reference import source
from tools.reference.options import meanings


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown, or an empty text if it has no rows."""
    lines = [
        "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in row) + " |"
        for row in rows
    ]
    if not lines:
        return ""
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])


def settings_page() -> str:
    """Return the page on everything that can be set from outside."""
    own = source.members(source.find("duly.settings", "Settings"))
    words = {member.name: member.words for member in own if member.words}
    words |= meanings(source.initializer(source.find("duly", "Duly")).words)
    rows = [
        (
            f"`{each.name}`",
            f"`{PREFIX}{each.name.upper()}`",
            "" if each.default in {None, ""} else f"`{shown(each.default)}`",
            "yes" if each.name in {"url", *AppOptions.__annotations__} else "",
            words[each.name],
        )
        for each in fields(Settings)
        if each.name != "origins"
    ]
    return _page(
        "Settings",
        "A setting comes from the first of these places that has it: an option on the command "
        "line, a keyword of `Duly(…)`, the environment, `[tool.duly]` in the nearest "
        "`pyproject.toml`, the default. `duly config` shows every setting and where it came from. "
        'Durations are seconds, or texts such as `"90s"`, `"15m"`, `"24h"` and `"7d"`. A name that '
        "does not exist is an error. `DULY_PYPROJECT` names a file to use instead of the nearest "
        "`pyproject.toml`. "
        "See [the settings](../how-to/configuration.md#settings).",
        table(("Setting", "Environment", "Default", "Keyword", "Meaning"), rows),
    )


def shown(value: object) -> str:
    """Return a default as a person would write it."""
    if not isinstance(value, float):
        return str(value) or '""'
    days, rest = divmod(value, 86_400)
    return f"{days:g}d" if days and not rest else f"{value:g}"


def limits_page() -> str:
    """Return the page on the limits of the engine."""
    rows = []
    for node in source.module("duly.limits").body:
        if isinstance(node, ast.Assign):
            name = ast.unparse(node.targets[0])
            words = source.find("duly.limits", name).words
            value = getattr(limits, name)
            rows.append((f"`{name}`", f"{int(value) if value == int(value) else value:,}", words))
    return _page(
        "Limits",
        "Every limit of the engine is in `duly.limits`. A call that exceeds one of its limits "
        "raises a typed error, the same on both databases, and writes nothing. The limits are "
        "constants, not settings.",
        table(("Name", "Value", ""), rows),
    )


def errors_page() -> str:
    """Return the page on errors."""
    tree = dedent(source.words_of("duly.errors").partition("\n\n")[2].partition("\n\n")[0])
    rows = []
    for name in source.offered("duly.errors"):
        kind = getattr(errors, name)
        words = source.find("duly.errors", name).words
        is_error = issubclass(kind, errors.DulyError)
        status = str(status_of(kind.__new__(kind))) if is_error else ""
        rows.append((f"`{name}`", status, words))
    return _page(
        "Errors",
        "All errors are in `duly.errors`. The most common ones can also be imported from `duly`. "
        "The status is the exit status of a command of `duly` that ends with the error.",
        f"```text\n{tree}\n```",
        table(("Error", "Status", "When"), rows),
    )


def metrics_page() -> str:
    """Return the page on metrics, as a new store exposes them."""
    with TemporaryDirectory() as folder:
        app = Duly(f"sqlite:///{folder}/duly.db")
        found = list(DulyCollector(app).collect())
        app.close()
    rows = [
        (f"`{_exposed(metric)}`", metric.type, _labels(metric), metric.documentation)
        for metric in found
    ]
    return _page(
        "Metrics",
        "duly exposes these metrics to Prometheus: see "
        "[monitoring](../how-to/monitoring.md#metrics).",
        table(("Metric", "Type", "Labels", "Meaning"), rows),
    )


def _exposed(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def _labels(metric: Metric) -> str:
    # A metric without samples has no public attribute with its labels.
    return ", ".join(vars(metric)["_labelnames"])


def fault_points_page() -> str:
    """Return the page on fault points."""
    rows = []
    for verb in dict.fromkeys(name.partition(".")[0] for name in faultpoints.NAMES):
        points = [name for name in faultpoints.NAMES if name.startswith(f"{verb}.")]
        rows.append((verb, ", ".join(f"`{point}`" for point in points), _VERBS[verb]))
    return _page(
        "Fault points",
        "Places in the engine where a test can crash the process: "
        '`duly_worker.crash_at("settle.before_commit")`, see [testing](../how-to/testing.md), or '
        "in a real worker `DULY_FAULTPOINTS=settle.before_commit=kill`, with `@3` for the third "
        "time. `duly.testing.FAULT_POINTS` has their names.",
        table(("Verb", "Points", "Activity"), rows),
    )


_VERBS = {
    "enqueue": "a run is accepted",
    "claim": "a worker takes runs",
    "settle": "the end of an attempt is recorded",
    "recover": "the runs of a dead worker are taken from it",
    "operate": "an operator acts (retries, cancels, pauses), or anything else is written: the "
    "record of a step, an event, a schedule, a lock, a key, upkeep",
    "beat": "a worker shows that it lives",
    "attempt": "the body of a task",
    "transaction": "the end of a body's own transaction",
}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"
