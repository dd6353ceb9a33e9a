"""The command line in a folder with an application, on every kind of store."""

import json
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from duly import Duly
from duly.cli import commands
from duly.cli.applications import load_app
from duly.observe.log_setup import FORMAT, LEVEL

ORDERS = '''
"""The application of these tests."""

import threading
from datetime import date

from duly import Duly, Retry, current

app = Duly()
started = threading.Event()


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="mail")
def send(text: str) -> None:
    raise ConnectionError(f"no server answers {text}")


@app.task(redact=("secret",))
def log_in(user: str, secret: str) -> str:
    if user == "stranger":
        raise PermissionError(f"{user} may not use {secret}")
    return user


@app.task
def day_after(day: date) -> date:
    return date.fromordinal(day.toordinal() + 1)


@app.task
def talk(text: str) -> str:
    current().log.info(text)
    current().progress(0.5, text)
    return text


@app.task
def stay() -> None:
    started.set()
    while True:
        current().check_cancelled()
        threading.Event().wait(0.01)
'''

Cli = Callable[..., Result]


@pytest.fixture
def url(store_kind: str, request: pytest.FixtureRequest) -> str:
    """The URL of a fresh store of each available kind."""
    if store_kind.startswith("postgres") and find_spec("duly.store.postgres.store") is None:
        pytest.skip("there is no store for PostgreSQL yet")
    found: str = request.getfixturevalue("store_url")
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with orders.py in it and no duly variables in the environment."""
    for name in ("DULY_APP", "DULY_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in (LEVEL, FORMAT):
        # Set, so that what a command sets for the processes that it starts is undone; empty is as
        # if it were not there.
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("DULY_ACTOR", "tester")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "orders.py").write_text(ORDERS)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def cli() -> Cli:
    """Runs one command."""

    def run(*args: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(commands, args, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def app(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Duly]:
    """The application that DULY_APP names, on the store that DULY_URL names."""
    monkeypatch.setenv("DULY_URL", url)
    monkeypatch.setenv("DULY_APP", "orders:app")
    found = load_app("orders:app")
    found.store.now()
    yield found
    found.close()


@pytest.fixture
def drain(app: Duly) -> Callable[[], None]:
    """Runs all due runs."""
    return lambda: app.worker().drain(timeout=30)


@pytest.fixture
def run_of(app: Duly) -> Callable[..., Any]:
    """Enqueues a run of a task by its short name."""
    orders = sys.modules["orders"]

    def enqueue(name: str, *args: Any, **options: Any) -> Any:
        return getattr(orders, name).using(**options).enqueue(*args)

    return enqueue


@pytest.fixture
def dead(run_of: Callable[..., Any], drain: Callable[[], None]) -> list[str]:
    """The ids of three dead letters, oldest first."""
    ids = [run_of("send", f"order-{number}").id for number in range(3)]
    drain()
    return ids


def answer(result: Result) -> Any:
    """Return the one JSON document on stdout."""
    return json.loads(result.stdout)


def error(result: Result) -> Any:
    """Return the error that was written as JSON."""
    return json.loads(result.stderr)["error"]
