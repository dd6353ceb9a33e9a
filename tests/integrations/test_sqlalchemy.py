"""SQLAlchemy sessions in the transaction of a run."""

from contextlib import suppress

import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from duly import BadOption, Duly, Retry, current
from duly.integrations.sqlalchemy import run_session


class Base(DeclarativeBase):
    """The application's models."""


class Payment(Base):
    """A row that must be written exactly once."""

    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    run: Mapped[str]


@pytest.fixture
def engine(store_url):
    """Return the application's own engine."""
    engine = sqlalchemy.create_engine(
        store_url.replace("postgresql://", "postgresql+psycopg://"),
        poolclass=sqlalchemy.NullPool,
    )
    Base.metadata.create_all(engine)
    return engine


@pytest.fixture
def app(store_url, engine):
    """Yield an application on the same database."""
    app = Duly(store_url)
    yield app
    app.close()


def payments(engine) -> list[str]:
    """Return the names in the table of payments."""
    with engine.connect() as connection:
        return list(connection.scalars(sqlalchemy.select(Payment.run).order_by(Payment.id)))


def test_the_rows_of_a_session_are_committed_with_the_run_and_not_earlier(app, engine):
    seen = []

    @app.task(name="pay", transaction=True, retries=Retry(1, base=0))
    def pay() -> int:
        with run_session() as session:
            session.add(Payment(run=current().run_id))
        seen.append(payments(engine))
        if current().attempt == 1:
            raise OSError("once more")
        with run_session() as session:
            return session.query(Payment).count()

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == 1
    assert seen == [[], []]
    assert payments(engine) == [run.id]


def test_a_session_can_end_only_its_own_part_of_the_transaction(app, engine):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        with run_session() as session:
            session.add(Payment(run="first"))
            session.commit()
            session.add(Payment(run="never"))
            session.rollback()
        with suppress(ZeroDivisionError), run_session() as session:
            session.add(Payment(run="neither"))
            session.flush()
            1 / 0  # noqa: B018
        with run_session() as session:
            session.add(Payment(run="second"))

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    run.result(timeout=5)
    assert payments(engine) == ["first", "second"]


def test_runs_that_a_task_enqueues_are_rolled_back_with_its_session(app, engine):
    @app.task(name="receipt")
    def receipt() -> None: ...

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        with run_session() as session:
            session.add(Payment(run="one"))
            receipt.enqueue()
        raise ValueError("no")

    pay.enqueue()
    app.worker().drain(timeout=20)

    assert payments(engine) == []
    assert app.runs.list(task=receipt) == []


def test_a_session_requires_a_task_with_a_transaction(app):
    @app.task(name="pay")
    def pay() -> None:
        with pytest.raises(BadOption, match="transaction=True"), run_session():
            pass

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    run.result(timeout=5)


def test_a_text_that_would_end_the_transaction_is_refused_in_a_session_too(app, engine):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        with run_session() as session:
            session.add(Payment(run="never"))
            session.flush()
            session.execute(sqlalchemy.text("/* so */ commit"))

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert "BadOption" in (run.refresh().record.error or "")
    assert payments(engine) == []


@pytest.mark.stores("postgres")
def test_sessions_of_two_runs_share_one_connection_one_after_the_other(app):
    served = []

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        with run_session() as session:
            session.add(Payment(run=current().run_id))
            served.append(session.scalar(sqlalchemy.text("SELECT pg_backend_pid()")))

    for _ in range(2):
        pay.enqueue()
    app.worker(concurrency=1).drain(timeout=20)

    assert len(served) == 2
    assert len(set(served)) == 1
