"""Fixtures that the trials of one test process share."""

import sys
from collections.abc import Iterator

import pytest

from duly_prove.process_starter import ForkStarter, InterpreterStarter, ProcessStarter


@pytest.fixture(scope="session")
def starter() -> Iterator[ProcessStarter]:
    """Forks the programs of trials if possible. `make prove` starts each program normally."""
    if sys.platform != "linux":
        yield InterpreterStarter()
        return
    with ForkStarter() as forks:
        yield forks
