"""Tasks as a Django project has them."""

import os
import signal
from collections.abc import Callable

from django.db import connection

import duly
from duly import Retry
from duly.integrations.django import duly_options, exactly_once
from tests.integrations.django.api import TaskContext, task
from tests.integrations.django.project import set_up

set_up()


@task()
def add(number: int, other: int = 1) -> int:
    return number + other


@task(queue_name="mail", priority=7)
async def add_on_the_loop(number: int) -> int:
    return number + 1


@task()
def divide(number: int, by: int) -> float:
    return number / by


@task()
async def divide_on_the_loop(number: int, by: int) -> float:
    return number / by


@task()
@duly_options(redact=("by",))
def divide_secretly(number: int, by: int) -> float:
    return number / by


@task(takes_context=True)
def tell_attempt(context: TaskContext, word: str) -> list[object]:
    return [word, context.attempt, context.task_result.id]


@task()
def give_what_json_lacks() -> object:
    return object()


@task()
@duly_options(retries=Retry(2, base=0.01))
def retried(path: str) -> str:
    with open(path, "a") as said:  # noqa: PTH123 - a counter
        said.write("tried\n")
    with open(path) as said:  # noqa: PTH123
        tries = len(said.readlines())
    if tries < 3:
        raise ValueError(f"try {tries}")
    return "done"


@task(key=lambda number: f"number-{number}", on_crash="hold")
def keyed(number: int) -> int:
    return number


@task()
def ask_the_database() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 42")
        return cursor.fetchone()[0]


@task()
def tell_process() -> int:
    return os.getpid()


@task()
def enqueue_another() -> None:
    add.enqueue(1)


meanwhile: list[Callable[[], object]] = []


@task()
def do_meanwhile() -> None:
    """Do what a test wants done while this run is live; once."""
    if meanwhile:
        meanwhile.pop()()


@task()
def say(word: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO said VALUES (%s)", [word])


@task()
@duly_options(redact=("password",))
def log_in(name: str, password: str) -> str:
    return f"{name} with {len(password)} characters"


@task()
@duly_options(redact=("card",))
def pay(card: str, details: dict[str, object], *, fails: bool = False) -> dict[str, object]:
    if fails:
        raise ValueError(f"harmless for {card}")
    return {**details, "receipt": f"harmless with {card}"}


@task()
def refuse(password: str) -> None:
    raise ValueError(f"harmless for {password}")


@task(backend="other")
@exactly_once
def remind(customer: int) -> str:
    return f"reminded {customer}"


@task(backend="other")
def remind_plainly(customer: int) -> str:
    return f"reminded {customer}"


class Refused(Exception):
    """A task's own."""


@task()
@duly_options(transaction=True, retries=Retry(1, base=0.01))
def say_once(word: str, failures: int = 0) -> str:
    say.func(word)
    add.enqueue(1)
    if duly.current().attempt <= failures:
        raise Refused(word)
    return word


@task()
@duly_options(retries=Retry(2, base=0.01))
def fails_thrice() -> None:
    raise ValueError(f"try {duly.current().attempt}")


@task(backend="other")
@exactly_once
def count(path: str, *, dies: bool = False) -> None:
    with open(path, "a") as counter:  # noqa: PTH123 - an effect outside of every database
        counter.write(f"{duly.current().run_id}\n")
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)


@task(backend="other")
@exactly_once(transaction=True)
def say_and_die_once(path: str) -> None:
    say.func("hello")
    count.func.__wrapped__(path, dies=duly.current().attempt == 1)


@task()
def count_and_die_once(path: str) -> None:
    count.func.__wrapped__(path, dies=duly.current().attempt == 1)
