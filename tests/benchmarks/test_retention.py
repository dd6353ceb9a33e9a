"""The benchmark of retention runs, on a few runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.processes import ROOT


@pytest.mark.process
@pytest.mark.surface
@pytest.mark.timeout(180)
def test_the_benchmark_of_retention_measures_deletes_and_partitions(
    store_kind: str, tmp_path: Path
) -> None:
    store = store_kind.partition("-")[0]
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.retention", f"--store={store}", f"--json={file}"]
    few = ["--rows=20000", "--rounds=1", "--seconds=0.5"]

    done = subprocess.run([*command, *few], cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    figures = {figure["name"]: figure for figure in json.loads(file.read_text())["figures"]}
    assert figures["pruned one batch after the other"]["value"] > 0
    assert figures["written to delete a run"]["value"] > 0
    is_partitioned = "partitions: detach and drop one" in figures
    assert is_partitioned == (store == "postgres")
    assert all(name in done.stdout for name in figures)
