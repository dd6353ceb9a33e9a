"""The wheels of the two distributions: what is in them, and what they add to the command line."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from duly.version import VERSION

ROOT = Path(__file__).parents[2]
FOLDERS = {"duly": ROOT, "duly_prove": ROOT / "prove"}
PACKAGES = {"duly": {"duly", "duly_pytest"}, "duly_prove": {"duly_prove"}}
NEEDED = ("click", "cronsim", "rich", "markdown-it-py", "mdurl", "pygments")
"""The requirements of duly, and theirs."""


def run(*command: object, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=kept,
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> dict[str, Path]:
    """The wheel of each distribution, built without a network."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, source in FOLDERS.items():
        built = run(
            sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=source
        )
        assert built.returncode == 0, f"{name}: {built.stdout}{built.stderr}"
    return {name: next(folder.glob(f"{name}-{VERSION}-*.whl")) for name in FOLDERS}


@pytest.fixture
def environment(tmp_path) -> Path:
    """A fresh environment with the requirements of duly, linked from this one."""
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    version = "python{}.{}".format(*sys.version_info)
    packages = folder / "lib" / version / "site-packages"
    for name in NEEDED:
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            (packages / top).symlink_to(found.locate_file(top))
    return folder / "bin"


def install(wheel: Path, environment: Path) -> None:
    python = environment / "python"
    offline = ("--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check")
    done = run(sys.executable, "-m", "pip", "--python", python, "install", *offline, wheel)
    assert done.returncode == 0, done.stderr


def test_each_wheel_has_only_its_own_packages(wheels):
    names = {name: set(ZipFile(wheel).namelist()) for name, wheel in wheels.items()}
    info = re.compile(rf"duly(_prove)?-{VERSION}\.dist-info")

    for name, packages in PACKAGES.items():
        assert {
            top for file in names[name] if not info.fullmatch(top := file.partition("/")[0])
        } == packages
    assert {"duly/store/sql/claim.sqlite.sql", "duly/py.typed"} <= names["duly"]
    assert {f"duly_prove/sql/faults.{kind}.sql" for kind in ("sqlite", "postgresql")} <= names[
        "duly_prove"
    ]
    assert [name for name in names["duly"] if "prove" in name or "demo" in name] == []


def test_both_distributions_have_the_version_of_the_code():
    projects = {
        name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for name, folder in FOLDERS.items()
    }

    assert {project["version"] for project in projects.values()} == {VERSION}
    assert projects["duly_prove"]["dependencies"] == [f"duly=={VERSION}"]
    assert len({project["requires-python"] for project in projects.values()}) == 1


def test_the_licence_is_the_same():
    assert (ROOT / "prove" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.process
def test_the_demo_comes_with_the_second_wheel(wheels, environment, tmp_path):
    duly = environment / "duly"

    install(wheels["duly"], environment)
    alone = {name: run(duly, name, "--help", folder=tmp_path) for name in ("demo", "prove")}
    helped = run(duly, "--help", folder=tmp_path)
    install(wheels["duly_prove"], environment)
    both = {name: run(duly, name, "--help", folder=tmp_path) for name in ("demo", "prove")}

    for result in alone.values():
        assert (result.returncode, result.stdout) == (2, "")
        assert "pip install ./prove" in result.stderr
    assert (helped.returncode, "Watch duly at work" in helped.stdout) == (0, False)
    assert [result.returncode for result in both.values()] == [0, 0], both["prove"].stderr
    assert "--schedules" in both["demo"].stdout
    assert "--scale" in both["prove"].stdout
    assert "Watch duly at work" in run(duly, "--help", folder=tmp_path).stdout
