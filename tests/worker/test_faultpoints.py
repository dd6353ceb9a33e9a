"""Every fault point is reached, and a kill at those of an attempt loses and doubles nothing."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from duly import Duly, Retry, RetryAfter, current, faultpoints
from duly.store.ops.recovery import Recover
from tests.store.conformance.stores import Tables, opened_tables
from tests.store.conformance.verbs import lost


def test_every_point_is_hit_by_an_ordinary_days_work(app: Duly):
    hits: Counter[str] = Counter()
    for name in faultpoints.NAMES:
        faultpoints.arm(name, lambda name=name: hits.update([name]))

    @app.task(name="plain", retries=Retry(1))
    def plain() -> None:
        current().log.info("at work")
        if current().attempt == 1:
            raise RetryAfter(0)

    @app.task(name="paying", transaction=True)
    def paying() -> None:
        current().connection.execute("SELECT 1")

    with app.worker():
        for run in (plain.using(key="k").enqueue(), paying.enqueue()):
            run.result(timeout=20)
    app.store.do(Recover("nobody", lost))

    assert set(faultpoints.NAMES) - set(hits) == set()


def test_a_point_that_does_not_exist_cannot_be_armed():
    with pytest.raises(ValueError, match=r"there is no faultpoint 'claim\.sometime'"):
        faultpoints.arm("claim.sometime", lambda: None)


PROGRAM = """
import sys
from duly import Duly, current, faultpoints

faultpoints.arm_from_environment()
app = Duly(sys.argv[1])

@app.task(name="pay", transaction=True)
def pay():
    current().connection.execute("INSERT INTO ledger VALUES ('" + current().run_id + "')")

pay.enqueue()
app.worker(concurrency=1, lease=0.9, beat=0.3).drain(timeout=20)
"""


@pytest.fixture
def tables(app: Duly, store_url: str) -> Iterator[Tables]:
    """The database below the store, with a ledger."""
    assert app.runs.list() == []
    with opened_tables(store_url) as tables:
        tables.execute("CREATE TABLE ledger (run text NOT NULL)")
        yield tables


@pytest.mark.process
@pytest.mark.parametrize(
    "point",
    [name for name in faultpoints.NAMES if name.startswith(("beat.", "attempt.", "transaction."))],
)
def test_a_kill_there_loses_nothing_and_pays_once(app, tables, store_url, point):
    struck = subprocess.run(
        [sys.executable, "-c", PROGRAM, store_url],
        env=os.environ | {"DULY_FAULTPOINTS": f"{point}=kill"},
        capture_output=True,
        timeout=50,
        check=False,
    )
    assert struck.returncode == -9, struck.stderr

    (run,) = app.runs.list()

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        current().connection.execute(
            "INSERT INTO ledger VALUES ('" + current().run_id + "')"  # noqa: S608 - an id of ours
        )

    with app.worker(concurrency=1, lease=0.9, beat=0.3):
        run.result(timeout=30)

    assert tables.rows("SELECT run FROM ledger") == [(run.id,)]
