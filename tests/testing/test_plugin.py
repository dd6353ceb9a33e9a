"""The plugin in a separate pytest process, which loads it from its entry point."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, blocks

PAGE = DOCS / "how-to" / "testing.md"

SHOP, TESTS, REPAIRED, GAP = (block.text for block in blocks(PAGE) if block.kind == "python")


WITH_STOCK = "from test_shop import full_stock\n"
ON_POSTGRES = 'import pytest\npytestmark = pytest.mark.duly(store="postgres")\n'
NOT_OURS = ("cacheprovider", "randomly", "schemathesis", "hypothesispytest", "xdist", "anyio")
"""Installed plugins that take longer to load than these tests take to run."""


def run_pytest(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Run pytest in a folder."""
    command = [sys.executable, "-m", "pytest", "-q", *(f"-pno:{name}" for name in NOT_OURS)]
    kept = {name: text for name, text in os.environ.items() if name[:7] != "PYTEST_"}
    return subprocess.run(
        command,
        cwd=folder,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The example project of the page about testing."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text(
        "[pytest]\nduly_app = shop:app\naddopts = --strict-markers\n"
    )
    return folder


@pytest.mark.timeout(240)
def test_a_short_test_finds_a_planted_crash_bug_and_passes_after_its_repair(
    project, postgres_server
):
    url = postgres_server.url("postgres")
    test = (project / "test_shop.py").read_text()
    broken = run_pytest(project, DULY_TEST_POSTGRES=url)
    (project / "shop.py").write_text(REPAIRED)
    (project / "test_gap_on_sqlite.py").write_text(WITH_STOCK + GAP)
    (project / "test_gap_on_postgres.py").write_text(WITH_STOCK + ON_POSTGRES + GAP)
    whole = run_pytest(project, DULY_TEST_POSTGRES=url)

    short = test[test.index("def test_a_worker_that_dies") :]
    assert len(short.splitlines()) < 20
    assert "2 failed, 1 passed" in broken.stdout, broken.stdout
    assert "assert 8 == 9" in broken.stdout
    assert "5 passed" in whole.stdout, whole.stdout
    assert not (project / "duly.db").exists()


def test_pytest_loads_the_plugin_from_the_entry_point_of_the_distribution(tmp_path):
    (entry,) = [each for each in entry_points(group="pytest11") if each.name == "duly_pytest"]
    assert entry.dist is not None
    assert entry.dist.name == "duly"
    assert entry.load() is sys.modules["duly_pytest"]
    (tmp_path / "test_it.py").write_text(
        "def test_it(duly_worker, pytestconfig):\n"
        "    plugins = pytestconfig.pluginmanager.list_plugin_distinfo()\n"
        "    assert 'duly' in [found.metadata['name'] for _, found in plugins]\n"
    )

    (tmp_path / "shop.py").write_text("from duly import Duly\napp = Duly()\n")

    found = run_pytest(tmp_path, PYTEST_ADDOPTS="-o duly_app=shop:app")

    assert "1 passed" in found.stdout, found.stdout


def test_a_project_that_does_not_use_the_plugin_does_not_import_duly(tmp_path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_nothing_of_duly_is_loaded():\n    assert 'duly' not in sys.modules\n"
    )

    assert "1 passed" in run_pytest(tmp_path).stdout


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ('store="mysql"', 'takes app= and store="sqlite" or "postgres"'),
        ("shop=1", "takes app= and store="),
        ('store="postgres"', "DULY_TEST_POSTGRES names no server"),
    ],
)
def test_an_invalid_marker_is_an_error(tmp_path, marker, words):
    (tmp_path / "test_marked.py").write_text(
        f"import pytest\n@pytest.mark.duly({marker})\ndef test_it(duly_app): pass\n"
    )

    found = run_pytest(tmp_path, DULY_TEST_POSTGRES="")

    assert words in found.stdout
    assert "def duly_worker" not in found.stdout  # The error message is enough without the source.


REAL = "sqlite:///real.db"
TWO_APPS = """
from duly import Duly

app, other = Duly(), Duly()


@app.task
def ship(order_id: int) -> None: ...


@other.task
def bill(order_id: int) -> None: ...
"""


def test_a_test_without_a_configured_application_is_an_error_and_enqueues_nothing(tmp_path):
    (tmp_path / "shop.py").write_text(TWO_APPS)
    (tmp_path / "test_it.py").write_text(
        "import shop\n"
        "def test_it(duly_worker): shop.ship.enqueue(42)\n"
        "def test_that(duly_app): shop.ship.enqueue(42)\n"
    )

    found = run_pytest(tmp_path, DULY_URL=REAL)

    assert "2 errors" in found.stdout, found.stdout
    assert "duly_app is not set" in found.stdout
    assert "def duly_worker" not in found.stdout
    assert not (tmp_path / "real.db").exists()


@pytest.mark.parametrize(
    "act",
    [
        "shop.bill.enqueue(42)",
        "asyncio.run(shop.bill.aenqueue(42))",
        "shop.other.enqueue_many([shop.bill.call(42)])",
        'shop.other.schedules.add("bill", shop.bill, every=5, args=(42,))',
    ],
)
def test_other_applications_cannot_use_their_stores_during_a_test(tmp_path, act):
    (tmp_path / "shop.py").write_text(TWO_APPS)
    (tmp_path / "test_it.py").write_text(
        f"import asyncio, shop\ndef test_it(duly_worker):\n    shop.ship.enqueue(42)\n    {act}\n"
    )

    found = run_pytest(tmp_path, DULY_URL=REAL, DULY_APP="shop:app")

    assert "not belong to the harness of the running test" in found.stdout, found.stdout
    assert not (tmp_path / "real.db").exists()


def test_other_applications_use_their_stores_again_after_a_test(tmp_path):
    (tmp_path / "shop.py").write_text(TWO_APPS)
    (tmp_path / "test_it.py").write_text(
        "import shop\n"
        "from duly import Duly\n"
        "def test_it(duly_app):\n"
        "    assert [run.record.task for run in Duly(duly_app.url).runs.list()] == []\n"
        "def test_that(): assert shop.bill.enqueue(42).state == 'queued'\n"
    )

    found = run_pytest(tmp_path, DULY_URL=REAL, DULY_APP="shop:app")

    assert "2 passed" in found.stdout, found.stdout
