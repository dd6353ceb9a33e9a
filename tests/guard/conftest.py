"""What the tests of the guard share."""

from collections.abc import Iterator

import pytest

from duly import faultpoints


@pytest.fixture(autouse=True)
def _no_fault_is_left() -> Iterator[None]:
    yield
    faultpoints.disarm()
