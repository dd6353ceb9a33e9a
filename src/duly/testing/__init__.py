"""Support for application tests: a store per test, controlled time, and simulated crashes.

`duly_app` and `duly_worker` are fixtures of the pytest plugin. They are built on `Harness`.
"""

from duly.faultpoints import NAMES as FAULT_POINTS
from duly.testing.harness import Harness
from duly.testing.stores import PostgresTestStore, SqliteTestStore

__all__ = ["FAULT_POINTS", "Harness", "PostgresTestStore", "SqliteTestStore"]
