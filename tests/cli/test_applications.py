"""`--app module:attribute`: finds the application, or reports the step that failed."""

import subprocess
import sys

import pytest

from duly.cli.applications import load_app
from duly.cli.failures import status_of
from duly.errors import AppBroken, AppNotFound
from duly.worker.app_loader import parse_reference


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("shop:app", ("shop", "app")),
        ("shop", ("shop", "app")),
        ("shop:", ("shop", "app")),
        ("a.b.c:held.app", ("a.b.c", "held.app")),
    ],
)
def test_a_reference_is_module_and_attribute(reference, parts):
    assert parse_reference(reference) == parts


@pytest.mark.parametrize(
    "reference", ["", ":app", ".shop:app", "shop:app:x", "two words", "shop:app()", "a..b"]
)
def test_an_invalid_reference_is_refused(reference):
    with pytest.raises(AppNotFound, match="module:attribute"):
        parse_reference(reference)


@pytest.mark.parametrize("reference", ["examples/shop.py", "./examples/shop.py:app"])
def test_the_path_of_a_file_gets_a_hint(reference):
    with pytest.raises(AppNotFound, match=r"use the name of its module: examples\.shop:app"):
        parse_reference(reference)


def test_an_application_in_the_current_folder_is_found(folder):
    assert load_app("orders").registry.find("orders:add") is not None


def test_the_current_folder_comes_first(folder):
    # The standard library has a module of this name, which nothing has imported yet.
    (folder / "this.py").write_text("from duly import Duly\napp = Duly()\n")

    assert load_app("this:app") is sys.modules["this"].app


def test_an_attribute_can_be_nested(folder):
    (folder / "nested.py").write_text("from duly import Duly\nclass Held: app = Duly()\n")

    assert load_app("nested:Held.app") is sys.modules["nested"].Held.app


@pytest.mark.parametrize("name", ["nothing_here", "orders.below"])
def test_a_missing_module_is_named(folder, name):
    with pytest.raises(AppNotFound, match=rf"no module '{name}'") as caught:
        load_app(f"{name}:app")

    assert status_of(caught.value) == 2


def test_the_error_for_a_missing_attribute_lists_the_applications(folder):
    with pytest.raises(AppNotFound, match=r"module 'orders' has no 'application'; there is app"):
        load_app("orders:application")


def test_an_object_of_another_type_is_not_accepted_as_an_application(folder):
    with pytest.raises(AppNotFound, match=r"orders:add is a Task, not a Duly application"):
        load_app("orders:add")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import nothing_of_that_name", "No module named 'nothing_of_that_name'"),
        ("raise RuntimeError('no settings')", "RuntimeError: no settings"),
        ("from orders import nothing", "cannot import name 'nothing'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_shows_the_cause_and_its_place(folder, line, said):
    (folder / "broken.py").write_text(f"\n\n{line}\n")

    with pytest.raises(AppBroken) as caught:
        load_app("broken:app")

    message = str(caught.value)
    assert status_of(caught.value) == 1
    assert said in message
    assert "broken.py, line 3" in message


def test_the_traceback_is_printed_only_on_request(cli, folder):
    (folder / "broken.py").write_text("def load():\n    return {}['key']\nload()\n")

    brief = cli("runs", "list", "--app", "broken:app")
    verbose = cli("runs", "list", "--app", "broken:app", "-v")

    assert (brief.exit_code, verbose.exit_code) == (1, 1)
    assert len(brief.stderr.splitlines()) == 1
    assert "KeyError: 'key'" in brief.stderr
    assert "return {}['key']" in verbose.stderr
    assert "importlib" not in verbose.stderr
    assert "duly/" not in verbose.stderr


@pytest.mark.process
def test_the_output_of_finalizers_is_written_at_exit(folder):
    (folder / "final_updates.py").write_text(
        "import os\n"
        "from duly import Duly\n"
        "class Sender:\n"
        "    def __init__(self):\n"
        "        self.itself = self\n"
        "    def __del__(self, write=os.write):\n"
        "        write(1, b'sent what was gathered')\n"
        "sender = Sender()\n"
        "app = Duly()\n"
    )

    done = subprocess.run(
        [sys.executable, "-m", "duly", "config", "--app", "final_updates:app"],
        check=True,
        timeout=30,
        capture_output=True,
        text=True,
    )

    assert "sent what was gathered" in done.stdout
