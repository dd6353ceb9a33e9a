"""What was measured, against what it is held, and how it is shown."""

import json
import operator
import os
import platform
import sqlite3
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Literal, Self

from benchmarks.processes import ROOT

Of = Literal["duly", "ratio"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on duly's own figure or on its ratio to the bare loop's."""

    of: Of
    relation: Literal[">=", "<=", "<"]
    bound: float

    def is_met_by(self, value: float) -> bool:
        """Say whether a value keeps the bound."""
        return _RELATIONS[self.relation](value, self.bound)

    def __str__(self) -> str:
        return f"{'ratio ' if self.of == 'ratio' else ''}{self.relation} {show(self.bound)}"


_RELATIONS = {">=": operator.ge, "<=": operator.le, "<": operator.lt}


def at_least(bound: float, of: Of = "duly") -> Target:
    """Return a lower bound."""
    return Target(of, ">=", bound)


def at_most(bound: float, of: Of = "duly") -> Target:
    """Return an upper bound."""
    return Target(of, "<=", bound)


def below(bound: float) -> Target:
    """Return an upper bound that must not be reached."""
    return Target("duly", "<", bound)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table: duly's values per round, and the bare loop's beside them."""

    name: str
    store: str
    unit: str
    duly: Sequence[float]
    bare: Sequence[float] = ()
    targets: Sequence[Target] = ()
    note: str = ""

    @property
    def value(self) -> float:
        """Duly's figure."""
        return median(self.duly)

    @property
    def bare_value(self) -> float | None:
        """The bare loop's figure."""
        return median(self.bare) if self.bare else None

    @property
    def ratio(self) -> float | None:
        """The median of the rounds' own ratios: the two halves of a round saw the same machine."""
        if not self.bare:
            return None
        return median(ours / bare for ours, bare in zip(self.duly, self.bare, strict=True))

    @property
    def passed(self) -> bool | None:
        """Whether every target is met; None if there is none."""
        if not self.targets:
            return None
        values = {"duly": self.value, "ratio": self.ratio}
        return all(
            value is not None and target.is_met_by(value)
            for target in self.targets
            for value in [values[target.of]]
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and on what the figures were measured."""

    at: str
    commit: str
    uncommitted_changes: bool
    processor: str
    cores: int | None
    kernel: str
    load_at_start: tuple[float, float, float]
    python: str
    sqlite: str
    duly: str
    psycopg: str

    @classmethod
    def here_and_now(cls) -> Self:
        """Look around."""
        return cls(
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            commit=_git("rev-parse", "HEAD"),
            uncommitted_changes=bool(_git("status", "--porcelain")),
            processor=_processor(),
            cores=os.cpu_count(),
            kernel=platform.release(),
            load_at_start=os.getloadavg(),
            python=platform.python_version(),
            sqlite=sqlite3.sqlite_version,
            duly=metadata.version("duly"),
            psycopg=metadata.version("psycopg"),
        )


def interleave(
    rounds: int, *, bare: Callable[[], float], duly: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Measure bare, duly, bare, duly, …; return duly's values and the bare ones."""
    bare_values, duly_values = [], []
    for _ in range(rounds):
        bare_values.append(bare())
        duly_values.append(duly())
    return duly_values, bare_values


def table(figures: Iterable[Figure]) -> str:
    """Lay the figures out for people."""
    rows = [("figure", "store", "duly", "bare", "ratio", "target", "", "rounds", "")]
    rows += [
        (
            figure.name,
            figure.store,
            f"{show(figure.value)} {figure.unit}",
            "" if figure.bare_value is None else show(figure.bare_value),
            "" if figure.ratio is None else f"{figure.ratio:.2f}",
            ", ".join(map(str, figure.targets)),
            {True: "pass", False: "FAIL", None: ""}[figure.passed],
            _spread(figure.duly),
            figure.note,
        )
        for figure in figures
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def write_json(file: Path, machine: Machine, stores: dict[str, str], figures: list[Figure]) -> None:
    """Keep the figures for programs."""
    found: dict[str, Any] = {
        "machine": asdict(machine),
        "stores": stores,
        "figures": [
            asdict(figure)
            | {
                "value": figure.value,
                "bare_value": figure.bare_value,
                "ratio": figure.ratio,
                "targets": [str(target) for target in figure.targets],
                "passed": figure.passed,
            }
            for figure in figures
        ],
    }
    file.write_text(json.dumps(found, indent=2) + "\n")


def show(value: float) -> str:
    """Write a number with as many digits as it deserves."""
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return "1"
    return f"{len(values)}: {show(min(values))} to {show(max(values))}"


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(  # noqa: S603 - our own command
        command, cwd=ROOT, check=False, capture_output=True, text=True
    )
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
