"""Builds a commit of duly into an environment of its own."""

import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT, as_installed

PROGRAM = Path(__file__).with_name("program.py")
REQUIREMENTS = ("requirements/run.txt", "requirements/postgres.txt")
MEASURE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Build:
    """One build of duly: the commit, and the Python that has it installed."""

    commit: str
    python: Path

    def measure(self, workload: str, amount: int, *, url: str) -> float:
        """Run one workload once, in processes of its own, and return its speed."""
        with tempfile.TemporaryDirectory(prefix="duly-comparison-") as folder:
            shutil.copy(PROGRAM, folder)
            environment = as_installed() | {
                "DULY_URL": url,
                "COMPARISON_REPORT": str(Path(folder) / "report"),
                "PYTHONPATH": folder,
            }
            done = subprocess.run(  # noqa: S603 - our own program
                [self.python, "-P", Path(folder) / PROGRAM.name, workload, str(amount)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=MEASURE_SECONDS,
            )
        if done.returncode != 0:
            raise RuntimeError(f"{workload} failed at {self.commit[:10]}:\n{done.stderr}")
        return float(done.stdout)


def build(revision: str, *, folder: Path) -> Build:
    """Install a commit below a folder, unless an earlier call has done so."""
    commit = _run(["git", "rev-parse", f"{revision}^{{commit}}"]).strip()
    home = folder / commit[:12]
    python = home / "bin" / "python"
    stamp = home / "built"
    if not stamp.exists():
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=False, symlinks=True)
        with tempfile.TemporaryDirectory(prefix="duly-build-") as tree:
            _extract(commit, Path(tree))
            requirements = [part for file in REQUIREMENTS for part in ("-r", f"{tree}/{file}")]
            _install(python, requirements)
            _install(python, ["--no-deps", tree])
        stamp.touch()
    return Build(commit, python)


def _extract(commit: str, tree: Path) -> None:
    archive = tree / "commit.tar"
    _run(["git", "archive", "--output", str(archive), commit])
    _run(["tar", "-xf", str(archive), "-C", str(tree)])
    archive.unlink()


def _install(python: Path, arguments: Sequence[str]) -> None:
    """Install packages with uv, or with pip where uv fails, as the Makefile does."""
    uv = Path(sys.executable).with_name("uv")
    try:
        _run([str(uv), "pip", "install", "--quiet", "--python", str(python), *arguments])
    except (OSError, RuntimeError):
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--python", str(python), "install", *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(  # noqa: S603 - our own commands
        command, cwd=ROOT, check=False, capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:3])} failed:\n{done.stderr}")
    return done.stdout
