"""For tests of applications: a store of their own, time that they move, and deaths where they say.

`duly_app` and `duly_worker` are fixtures of the pytest plugin; `Harness` is what they are made of.
"""

from duly.faultpoints import NAMES as FAULT_POINTS
from duly.testing.harness import Harness
from duly.testing.stores import PostgresTestStore, SqliteTestStore

__all__ = ["FAULT_POINTS", "Harness", "PostgresTestStore", "SqliteTestStore"]
