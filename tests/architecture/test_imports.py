"""Each process imports only the modules that it uses, so that it starts quickly."""

import subprocess
import sys

import pytest

import duly
from duly import extend, version

_PROGRAM = """
import sys
import {modules}
print(*[name for name in {looked_for!r} if name in sys.modules])
"""

RUNS_TASKS = ("asyncio", "duly.app", "duly.worker.worker", "duly.worker.worker_main")
DRAWS = ("rich",)


def loaded_by(modules: str, looked_for: tuple[str, ...]) -> list[str]:
    program = _PROGRAM.format(modules=modules, looked_for=looked_for)
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        ("duly", RUNS_TASKS),
        ("duly.extend", RUNS_TASKS),
        ("duly.cli.worker, duly.worker.supervisor", RUNS_TASKS + DRAWS),
        ("duly.worker.worker_program, duly.worker.app_probe_program", (*RUNS_TASKS, "json")),
    ],
)
def test_a_process_does_not_import_modules_that_only_other_processes_need(modules, left_out):
    assert loaded_by(modules, left_out) == []


@pytest.mark.parametrize("module", [duly, extend])
def test_every_public_name_can_be_accessed(module):
    assert set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in module.__all__)


def test_the_version_can_be_accessed():
    assert "__version__" in dir(duly)
    assert duly.__version__ == version.VERSION


@pytest.mark.parametrize("module", [duly, extend])
def test_an_unknown_name_raises_an_attribute_error(module):
    with pytest.raises(
        AttributeError, match=f"module '{module.__name__}' has no attribute 'Celery'"
    ):
        _ = module.Celery


def test_the_errors_module_is_available_after_importing_only_the_package():
    done = subprocess.run(
        [sys.executable, "-c", "import duly; print(duly.errors.AppBroken.__name__)"],
        check=False,
        timeout=30,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "AppBroken\n", done.stderr
