"""Tasks whose calls, results, errors and limit keys all hold one secret."""

import threading
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

import duly
from duly import Discard, Duly, Task

CANARY = "canary-7f3a91"
HARMLESS = "harmless-word"


@dataclass
class Login:
    """Has a field that is named like a secret."""

    user: str
    password: str


class Payment(BaseModel):
    """Has a field that the task redacts."""

    order: int
    card: str


SCHEDULES = ("nightly", "failing", "limited")

NESTED: dict[str, Any] = {
    "card": CANARY,
    "settings": [{"api_key": CANARY, "word": HARMLESS}, ({"private_key": CANARY.encode()},)],
}


class Canaries:
    """The tasks, defined in an application."""

    def __init__(self, app: Duly) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

        def hold(card: str) -> None:
            self.begun.set()
            self.let_go.wait(20)

        define = app.task
        self.pay = define(name="pay", redact=("card",))(pay)
        self.others: list[Task[..., Any]] = [
            define(name=function.__name__, redact=("card",))(function)
            for function in (echo, fail, afail, discard)
        ]
        self.hold = define(
            name="hold", redact=("card",), limit=1, limit_key=lambda card: f"card:{card}"
        )(hold)

    def schedule(self, app: Duly) -> list[Any]:
        """Add schedules with the secret in their calls; return runs that two of them have made."""
        hourly = {"every": 3600, "actor": "tester"}
        payment, login = Payment(order=1, card=CANARY), Login("ann", CANARY)
        app.schedules.add("nightly", self.pay, args=(CANARY, NESTED, login, payment), **hourly)
        app.schedules.add("failing", self.others[1], args=(CANARY,), **hourly)
        app.schedules.add("limited", self.hold, args=(CANARY,), **hourly)
        return [app.schedules.run_now(name) for name in SCHEDULES[:2]]

    def enqueue(self) -> list[Any]:
        """Enqueue a run of each, but of the task that is held."""
        payment, login = Payment(order=1, card=CANARY), Login("ann", CANARY)
        first = self.pay.enqueue(CANARY, NESTED, login, payment, {"card": CANARY}, token=CANARY)
        return [first, *(task.enqueue(CANARY) for task in self.others)]


def pay(
    card: str,
    details: dict[str, Any],
    login: Login,
    payment: Payment,
    *others: dict[str, Any],
    **more: str,
) -> dict[str, Any]:
    """Return the secret under its name, under names of secrets, and within a text."""
    logins = [{"password": login.password}]
    return {**details, "logins": logins, "receipt": f"{HARMLESS} with {card}"}


def echo(card: str) -> str:
    return card


def fail(card: str) -> None:
    duly.step("ask-the-bank", lambda: {"card": card, "answer": f"no {card}"})
    try:
        _ = {}[card]
    except KeyError as error:
        raise ValueError(f"{HARMLESS} for {card!r}\n{Login('ann', card)}") from error


async def afail(card: str) -> None:
    raise ValueError(f"{HARMLESS} for {card}" + 1_000 * " " + 3_000 * card)


def discard(card: str) -> None:
    raise Discard(reason=f"{HARMLESS} for {card}")


app = Duly("sqlite:///canaries.db")
Canaries(app)
