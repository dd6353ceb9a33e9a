"""Where an engine is not installed, its integration says how to install it."""

import subprocess
import sys

import pytest

PROGRAM = """
import importlib, sys
for name in ("celery", "rq", "dramatiq"):
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
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=50
    )

    lines = done.stdout.splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("celery", "rq", "dramatiq"), strict=True):
        assert line.startswith("ImportError ")
        assert f"pip install 'duly[{name}]'" in line
