"""The modules that define tasks are named once, and every worker and command imports them."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from duly import Duly
from duly.errors import AppBroken, AppNotFound, BadOption
from duly.worker import app_loader
from duly.worker.app_loader import load

DULY = str(Path(sys.executable).with_name("duly"))
APP = """
from duly import Duly

app = Duly({url!r}, include={include!r})
"""
TASK = """
from parcels.app import app


@app.task
def {name}() -> str:
    return {name!r}
"""

pytestmark = pytest.mark.stores("sqlite-wal")


@pytest.fixture
def parcels(folder, url):
    """Write a package whose application names its modules of tasks. Return the function."""

    def write(*include: str) -> None:
        package = folder / "parcels"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "app.py").write_text(APP.format(url=url, include=include))
        for name in ("send", "weigh"):
            (package / f"{name}.py").write_text(TASK.format(name=name))

    yield write
    if "parcels.app" in sys.modules:
        sys.modules["parcels.app"].app.close()
    for name in [name for name in sys.modules if name.partition(".")[0] == "parcels"]:
        del sys.modules[name]


def test_an_application_is_loaded_with_its_modules_of_tasks(parcels):
    parcels("parcels.send", "parcels.weigh")

    assert load("parcels.app").registry.names() == ("parcels.send:send", "parcels.weigh:weigh")


def test_a_worker_in_the_program_imports_them_when_it_starts(parcels, folder, monkeypatch):
    parcels("parcels.send")
    monkeypatch.syspath_prepend(folder)
    from parcels.app import app  # noqa: PLC0415 - written by this test

    assert app.registry.names() == ()
    app.worker(include=["parcels.weigh"]).drain()

    assert app.registry.names() == ("parcels.weigh:weigh",)
    app.worker().drain()
    assert app.registry.names() == ("parcels.weigh:weigh", "parcels.send:send")
    app.close()


def test_the_environment_can_name_them(parcels, monkeypatch):
    parcels()
    monkeypatch.setenv("DULY_INCLUDE", "parcels.send, parcels.weigh")

    with closing(Duly()) as app:
        assert app.settings.worker().include == ("parcels.send", "parcels.weigh")


@pytest.mark.parametrize("include", ["shop/tasks.py", ["shop.tasks", "two words"], [1], 1])
def test_a_name_that_is_not_of_a_module_is_refused(include):
    with pytest.raises(BadOption, match="include"):
        Duly(include=include)


def test_a_module_that_cannot_be_imported_is_named(parcels, folder):
    parcels("parcels.send", "parcels.nothing")

    with pytest.raises(AppNotFound, match=r"no module 'parcels\.nothing'"):
        load("parcels.app")

    (folder / "parcels" / "nothing.py").write_text("1 / 0\n")
    with pytest.raises(AppBroken, match=r"importing 'parcels\.nothing' failed: ZeroDivisionError"):
        load("parcels.app")


def test_a_worker_without_tasks_warns(parcels, monkeypatch):
    parcels()
    notices: list[str] = []
    monkeypatch.setattr(app_loader, "log_notice", notices.append)

    load("parcels.app").worker().drain()

    (notice,) = notices
    assert notice.startswith("no task is registered, so this worker runs nothing")


@pytest.mark.process
def test_a_worker_process_imports_the_modules_of_the_application_and_of_its_option(parcels, url):
    parcels("parcels.send")
    app = Duly(url)
    runs = [app.task(name=f"parcels.{name}:{name}")(print).enqueue() for name in ("send", "weigh")]

    worker = start_worker("-I", "parcels.weigh")

    assert worker.returncode == 0, worker.stderr
    assert [run.refresh().result() for run in runs] == ["send", "weigh"]
    app.close()


@pytest.mark.process
def test_a_worker_process_ends_if_a_module_is_missing(parcels):
    parcels()

    worker = start_worker("-I", "parcels.nothing")

    assert worker.returncode == 2, worker.stderr
    assert "no module 'parcels.nothing'" in worker.stderr
    assert "Traceback" not in worker.stderr


def start_worker(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a worker process of the package until nothing is left to do."""
    command = [DULY, "worker", "parcels.app", "--drain", *options]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=50)
