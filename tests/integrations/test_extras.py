"""Where an engine is not installed, its integration says how to install it."""

import subprocess
import sys
from itertools import chain

import pytest

ENGINES = {
    f"duly.integrations.{name}": name for name in ("celery", "rq", "dramatiq", "fastapi")
} | {"duly.compat.fastapi_taskflow": "fastapi"}
PROGRAM = """
import importlib, sys
for name, engine in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[engine] = None
    try:
        importlib.import_module(name)
    except ImportError as error:
        print(type(error).__name__, error)
importlib.import_module("duly.integrations.http_idempotency")
"""


@pytest.mark.process
def test_an_engine_that_is_not_installed_is_named_with_its_extra():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *chain.from_iterable(ENGINES.items())],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    lines = done.stdout.splitlines()
    for line, (name, engine) in zip(lines, ENGINES.items(), strict=True):
        assert line.startswith(f"ImportError {name} needs {engine}")
        assert f"pip install 'duly[{engine}]'" in line
