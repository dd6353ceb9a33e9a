"""An application of a user's, under the harness, on each database."""

import pytest

from duly import Duly
from duly.testing import Harness


@pytest.fixture
def app(harness: Harness) -> Duly:
    """That application."""
    return harness.app
