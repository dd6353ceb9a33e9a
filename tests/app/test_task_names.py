"""A task has the same name when its file is run as a program and when a worker imports it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from duly import Duly

PROGRAM = """
import sys
from duly import Duly

app = Duly()


@app.task
def send(number: int) -> int:
    return number * 2


class Shop:
    @app.task
    @staticmethod
    def bill(number: int) -> int:
        return number


if __name__ == "__main__":
    print(send.name, Shop.bill.name)
    if "enqueue" in sys.argv:
        send.enqueue(21)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a program, and a package with the same program inside."""
    (tmp_path / "shop.py").write_text(PROGRAM)
    package = tmp_path / "company" / "sales"
    package.mkdir(parents=True)
    for init in (package.parent, package):
        (init / "__init__.py").write_text("")
    (package / "shop.py").write_text(PROGRAM)
    (package / "__main__.py").write_text(PROGRAM)
    return tmp_path


def run(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in the folder and return its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_task_has_the_same_name_in_a_program_and_in_an_import_of_it(folder):
    as_program = run(folder, "shop.py")
    imported = run(folder, "-c", "import shop; print(shop.send.name, shop.Shop.bill.name)")

    assert as_program == imported == "shop:send shop:Shop.bill"


@pytest.mark.parametrize(
    "arguments",
    [
        ("company/sales/shop.py",),
        ("-m", "company.sales.shop"),
        ("-c", "import company.sales.shop as s; print(s.send.name, s.Shop.bill.name)"),
    ],
    ids=["file", "module", "import"],
)
def test_a_program_inside_a_package_names_its_tasks_with_the_package(folder, arguments):
    assert run(folder, *arguments) == "company.sales.shop:send company.sales.shop:Shop.bill"


def test_the_tasks_of_a_package_run_by_its_name_are_named_without_main(folder):
    assert run(folder, "-m", "company.sales") == "company.sales:send company.sales:Shop.bill"


def test_a_program_that_also_imports_itself_registers_its_tasks_once(folder):
    (folder / "base.py").write_text("from duly import Duly\napp = Duly()\n")
    (folder / "both.py").write_text(
        "from base import app\n"
        "@app.task\n"
        "def send() -> None: ...\n"
        "if __name__ == '__main__':\n"
        "    import both\n"
        "    print(both.send is not send, *app.registry.names())\n"
    )

    assert run(folder, "both.py") == "True both:send"


def test_a_process_spawned_by_multiprocessing_names_tasks_as_its_parent_does(folder):
    (folder / "parent.py").write_text(
        "import multiprocessing\n"
        "from shop import app\n"
        "@app.task\n"
        "def send() -> None: ...\n"
        "def tell() -> None: print(send.name, flush=True)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=tell)\n"
        "    child.start()\n"
        "    child.join()\n"
    )

    assert run(folder, "parent.py") == "parent:send"
    assert run(folder, "-m", "parent") == "parent:send"


TWICE = """
import functools
from base import app

def logged(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

@app.task
def send(to: str = "all", options: object = object()) -> str: return to

@app.task
@logged
def bill() -> None: ...
"""


@pytest.mark.parametrize(
    "again",
    [
        "importlib.reload(twice)",
        "del sys.modules['twice']; import twice",
    ],
    ids=["reloaded", "imported again"],
)
def test_a_module_that_is_imported_again_registers_its_tasks_once(folder, again):
    (folder / "base.py").write_text("from duly import Duly\napp = Duly()\n")
    (folder / "twice.py").write_text(TWICE)

    code = f"import importlib, sys, twice; {again}; print(*twice.app.registry.names())"
    assert run(folder, "-c", code) == "twice:send twice:bill"


@pytest.mark.stores("sqlite-wal")
def test_a_worker_that_imports_a_program_executes_the_runs_it_enqueued(folder, app, store_url):
    run(folder, "shop.py", "enqueue", DULY_URL=store_url)

    run(folder, "-c", "import shop; shop.app.worker().drain(timeout=20)", DULY_URL=store_url)

    (found,) = app.runs.list()
    assert (found.record.task, found.state, found.result()) == ("shop:send", "succeeded", 42)


def test_a_run_enqueued_under_an_old_name_is_executed_by_the_task_with_that_alias(app, store_url):
    before = Duly(store_url)

    @before.task(name="old:name")
    def send(number: int) -> int:
        return number

    run_id = send.enqueue(4).id
    before.close()

    @app.task(name="new:name", aliases=("old:name",))
    def double(number: int) -> int:
        return number * 2

    app.worker().drain(timeout=20)

    found = app.runs.get(run_id)
    assert (found.state, found.result()) == ("succeeded", 8)
    assert found.record.task == "old:name"
