"""The shop's own tables, in the same database as duly's tables."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy import ForeignKey, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from duly import Duly

app = Duly()  # DULY_URL, else sqlite:///duly.db

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
address = make_url(app.url)
address = address.set(drivername=DRIVERS[address.get_backend_name()])
engine = create_async_engine(address)
open_session = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]
    is_paid: Mapped[bool] = mapped_column(default=False)


class Charge(Base):
    __tablename__ = "charges"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    cents: Mapped[int]


class Tally(Base):
    __tablename__ = "tallies"

    run_id: Mapped[str] = mapped_column(primary_key=True)
    orders: Mapped[int]
    cents: Mapped[int]


async def create_tables() -> None:
    """A real shop has migrations. If several processes start, one creates the tables."""
    async with app.lock("create-tables"), engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def _session() -> AsyncIterator[AsyncSession]:
    async with open_session() as session:
        yield session


Session = Annotated[AsyncSession, Depends(_session)]
