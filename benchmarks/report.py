"""The measured figures, their targets, and how they are shown."""

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
        """Return whether a value is within the bound."""
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
    """One line of the table: the values of duly and of the bare loop, per round."""

    name: str
    store: str
    unit: str
    duly: Sequence[float]
    bare: Sequence[float] = ()
    targets: Sequence[Target] = ()
    note: str = ""

    @property
    def value(self) -> float:
        """The figure of duly."""
        return median(self.duly)

    @property
    def bare_value(self) -> float | None:
        """The figure of the bare loop."""
        return median(self.bare) if self.bare else None

    @property
    def ratio(self) -> float | None:
        """The median ratio of all rounds. Both halves of a round ran under the same conditions."""
        if not self.bare:
            return None
        return median(ours / bare for ours, bare in zip(self.duly, self.bare, strict=True))

    @property
    def passed(self) -> bool | None:
        """Whether every target is met. None without targets."""
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
    """The machine and the versions with which the figures were measured."""

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
        """Return the machine and the versions of this process."""
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
    """Measure bare, duly, bare, duly, … Return the values of duly and of the bare loop."""
    bare_values, duly_values = [], []
    for _ in range(rounds):
        bare_values.append(bare())
        duly_values.append(duly())
    return duly_values, bare_values


def table(figures: Iterable[Figure]) -> str:
    """Format the figures for people."""
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
    """Write the figures for programs."""
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
    """Format a number with a sensible count of digits."""
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
