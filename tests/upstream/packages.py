"""The packages whose tests are run, and the way of running them."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

_HERE = Path(__file__).parent
_SHIMS = _HERE / "shims"
_SECONDS = 1200


@dataclass(frozen=True)
class Package:
    """A package whose source distribution contains its tests."""

    name: str
    version: str
    module: str
    """The package's own code, which is removed. Its name refers to duly here."""
    plugin: str
    """The shim that is loaded with the tests."""
    passes: int
    """The number of tests on its list of passes. The README states when it may decrease."""
    tests: str = "tests"
    options: tuple[str, ...] = ()
    settings: str | None = None
    """The module of Django's settings."""
    files: str | None = None
    """A folder of files that are copied next to the tests."""
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def archive(self) -> str:
        """The name of its source distribution."""
        return f"{self.name.replace('-', '_')}-{self.version}.tar.gz"


PACKAGES = (
    Package(
        "fastapi-taskflow",
        "0.12.1",
        "fastapi_taskflow",
        "taskflow",
        passes=105,
        options=("-p", "no:django"),
    ),
    Package(
        "django-periodic-tasks",
        "0.2.1",
        "django_periodic_tasks",
        "periodic",
        passes=68,
        settings="periodic_settings",
    ),
    Package(
        "django-tasks-db",
        "0.13.0",
        "django_tasks_db",
        "tasks_db",
        passes=26,
        tests="tests/tests.py",
        settings="tasks_db_settings",
        files="tasks_db_files",
    ),
)


def unpack(package: Package, sources: Path, folder: Path) -> Path:
    """Unpack a source distribution into a folder, without the package's own code."""
    with tarfile.open(sources / package.archive) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    shutil.rmtree(root / package.module)
    if package.files is not None:
        shutil.copytree(_SHIMS / package.files, root, dirs_exist_ok=True)
    return root


def run(package: Package, root: Path, tests: Collection[str] = ()) -> dict[str, str]:
    """Run all or some tests of an unpacked package. Return the outcome of each test."""
    scratch = root.parent / f"scratch-{len(list(root.parent.iterdir()))}"
    scratch.mkdir()
    outcomes = scratch / "outcomes.json"
    paths = [_HERE.parents[1] / "src", _SHIMS, root]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("DULY_")},
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "UPSTREAM_FOLDER": str(scratch),
        "UPSTREAM_OUTCOMES": str(outcomes),
        **({} if package.settings is None else {"DJANGO_SETTINGS_MODULE": package.settings}),
    }
    command = [
        *(sys.executable, "-m", "pytest", "-p", package.plugin, "-p", "outcomes"),
        *("-p", "no:cacheprovider", "--timeout", "30", "-q", "--tb", "short"),
        *("--basetemp", str(scratch / "tests"), *package.options, *(tests or [package.tests])),
    ]
    log = scratch / "pytest.log"
    with log.open("w") as output:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    if not outcomes.exists():
        raise SystemExit(f"pytest ended with {done.returncode}:\n{log.read_text()[-4000:]}")
    found: dict[str, str] = json.loads(outcomes.read_text())
    return found
