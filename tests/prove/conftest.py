"""What the trials of one test process share."""

import sys
from collections.abc import Iterator

import pytest

from duly.prove.starting import Forks, Interpreters, Starter


@pytest.fixture(scope="session")
def starter() -> Iterator[Starter]:
    """Forks the programs of trials, where that can be; `make prove` starts each anew."""
    if sys.platform != "linux":
        yield Interpreters()
        return
    with Forks() as forks:
        yield forks
