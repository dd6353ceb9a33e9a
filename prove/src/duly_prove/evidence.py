"""The result of a scenario on a database, as a document that can be stored and replayed."""

import json
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duly import __version__
from duly.clock import monotonic
from duly_prove.checker import CheckResult, check
from duly_prove.faults import count
from duly_prove.history import History
from duly_prove.history_report import count_all, history_of_run
from duly_prove.process_tree import TreeSettings
from duly_prove.scenarios.boundaries import boundaries
from duly_prove.scenarios.dead_letters import dead_letters
from duly_prove.scenarios.fault_points import fault_points
from duly_prove.scenarios.freezes import freezes
from duly_prove.scenarios.kills import kills
from duly_prove.scenarios.limits import limits
from duly_prove.scenarios.locks import locks
from duly_prove.scenarios.restarts import restarts
from duly_prove.scenarios.schedules import schedules
from duly_prove.scenarios.simulation import simulation
from duly_prove.scenarios.sleepers import sleepers
from duly_prove.trial import Trial

SCENARIOS = {
    "kills": kills,
    "freezes": freezes,
    "fault-points": fault_points,
    "boundaries": boundaries,
    "sleepers": sleepers,
    "dead-letters": dead_letters,
    "restarts": restarts,
    "schedules": schedules,
    "locks": locks,
    "limits": limits,
    "simulation": simulation,
}
_VIOLATIONS_SHOWN = 20
_FAULTS_FOR_A_BOUND = 10


@dataclass(frozen=True, slots=True)
class Evidence:
    """The document, and whether all invariants held."""

    scenario: str
    database: str
    holds: bool
    document: dict[str, Any]
    replay: str

    @property
    def file_name(self) -> str:
        """The file name of the document."""
        return f"{self.scenario}-{self.database}.json"

    def write(self, folder: Path) -> Path:
        """Write the document to a file."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / self.file_name
        file.write_text(json.dumps(self.document, indent=2) + "\n")
        return file


def gather(trial: Trial, scenario: str, scale: float, *, again: str | None = None) -> Evidence:
    """Run a scenario to its end, check its history, and return the evidence.

    `again` is the command that replays it, if that is not `duly prove`.
    """
    began_at = monotonic()
    SCENARIOS[scenario](trial, scale)
    history = trial.history()
    verdict = check(history)
    behind = trial.database.describe()
    name = _database_name(behind)
    options = f"--only {scenario} --seed {trial.seed} --scale {scale:g}"
    where = "--sqlite" if behind["kind"] == "sqlite" else f"--url {trial.app.store.shown_url}"
    replay = f"{again} {options}" if again else f"duly prove {options} {where}"
    broken = [*_violations_document(verdict), *trial.violations, *_missed_faults(trial)]
    made = count(trial.faults)
    document = {
        "scenario": scenario,
        "database": behind,
        "verdict": "broken" if broken else "holds",
        "seed": trial.seed,
        "scale": scale,
        "replay": replay,
        "strikes": {
            "made": sum(made.values()),
            "tried": len(trial.faults),
            "by_target": made,
            "bound": _bound(sum(made.values())),
        },
        "counts": count_all(history, verdict),
        "measured": {
            "seconds": round(monotonic() - began_at, 1),
            "seconds_to_settle_after_the_last_strike": _rounded(trial.seconds_to_recover),
            "largest_overlap_of_two_live_bodies_seconds": round(verdict.largest_overlap, 4),
            "largest_overlap_in_embedded_workers_seconds": round(
                verdict.largest_embedded_overlap, 4
            ),
            "most_losses_of_one_run": verdict.most_losses,
            "redriven_after_the_crash_limit": trial.retried,
            "snapshots": trial.feeder.snapshots,
        },
        "facts": trial.facts,
        "workers": _settings(trial.settings),
        "broken": broken[:_VIOLATIONS_SHOWN],
        "broken_in_all": len(broken),
        "first_counter_example": _counter_example(history, verdict),
        "commit": _commit(),
        "versions": {
            "duly": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
    }
    return Evidence(scenario, name, not broken, document, replay)


def _violations_document(verdict: CheckResult) -> list[str]:
    return [f"{v.invariant}: {v.what} (run {v.run_id})" for v in verdict.violations]


def _missed_faults(trial: Trial) -> list[str]:
    """Return the planned faults that did not happen, since they prove nothing."""
    points = trial.facts.get("points_never_struck", [])
    return [f"no process was killed at {point}" for point in points]


def _counter_example(history: History, verdict: CheckResult) -> list[dict[str, Any]] | None:
    for violation in verdict.violations:
        if violation.run_id:
            return history_of_run(history, violation.run_id)
    return None


def _bound(strikes: int) -> str:
    if strikes < _FAULTS_FOR_A_BOUND:
        return "too few strikes to bound anything"
    return f"0 failures in {strikes} strikes: below {3 / strikes:.2%} at 95 %"


def _database_name(behind: dict[str, str]) -> str:
    if behind["kind"] == "sqlite":
        return "sqlite" if behind["journal"] == "wal" else "sqlite-rollback"
    return f"postgres-{behind['version'].partition('.')[0]}"


def _settings(settings: TreeSettings) -> dict[str, float]:
    names = ("lease", "beat", "grace", "processes", "concurrency", "async_limit")
    return {name: getattr(settings, name) for name in names}


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _commit() -> str | None:
    """Return the current commit, with a mark if the files differ from it."""
    git = shutil.which("git")
    if git is None:
        return None
    here = Path(__file__).parent
    answers = [
        subprocess.run(  # noqa: S603 - git with fixed arguments
            [git, *words], cwd=here, check=False, capture_output=True, text=True
        )
        for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", ":/src", ":/prove"])
    ]
    if any(answer.returncode for answer in answers):
        return None
    commit, changes = (answer.stdout.strip() for answer in answers)
    return f"{commit} with changes" if changes else commit
