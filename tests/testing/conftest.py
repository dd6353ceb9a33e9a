"""The application of a user, in the harness, on each database."""

import pytest

from duly import Duly
from duly.testing import Harness


@pytest.fixture
def app(harness: Harness) -> Duly:
    """The application of the harness."""
    return harness.app
