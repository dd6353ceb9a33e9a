"""Where an engine is not installed, its integration says how to install it."""

import subprocess
import sys

import pytest

ENGINES = ("celery", "rq", "dramatiq", "fastapi")
PROGRAM = """
import importlib, sys
for name in sys.argv[1:]:
    sys.modules[name] = None
    try:
        importlib.import_module(f"duly.integrations.{name}")
    except ImportError as error:
        print(type(error).__name__, error)
importlib.import_module("duly.integrations.http_idempotency")
"""


@pytest.mark.process
def test_an_engine_that_is_not_installed_is_named_with_its_extra():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *ENGINES],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    lines = done.stdout.splitlines()
    for line, name in zip(lines, ENGINES, strict=True):
        assert line.startswith("ImportError ")
        assert f"pip install 'duly[{name}]'" in line
