"""The judge of the example shop detects defects."""

from contextlib import closing

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from duly import Duly
from examples.fastapi_shop.database import Base, Charge, Order
from tests.integrations.counter import tell
from tests.integrations.fastapi.judgement import Books

pytestmark = pytest.mark.stores("sqlite-wal")


def test_each_defect_is_named(store_url, counter):
    engine = create_engine(store_url)
    with closing(Duly(store_url)) as duly:
        duly.task(name="examples.fastapi_shop.tasks:book_courier")(lambda: None).enqueue()
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            session.add_all(Order(id=order, item="tea", cents=450) for order in (1, 2))
            session.add_all(Charge(order_id=1, cents=450) for _ in range(2))
            session.commit()
        for what in ("courier-begun", "courier-begun", "mail-ended"):
            tell(counter.port, what, 1)

        told = Books(duly, counter).judge([{"order": 2}, {"order": 3}], unanswered=0)

    engine.dispose()
    assert sorted(told.broken) == sorted(
        [
            "order 3 is lost",
            "order 1 is charged 2 times",
            "order 2 is charged 0 times",
            "order 2 has no receipt",
            "2 couriers for order 1",
            "1 couriers queued",
            "couriers of 2 orders: {<State.QUEUED: 'queued'>: 1}",
            "examples.fastapi_shop.tasks:book_courier is queued",
        ]
    )
