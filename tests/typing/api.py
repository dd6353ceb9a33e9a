"""The types of the public API, checked by mypy: what is wrong here must be an error there."""

from typing import assert_type

from duly import Duly, Run, Task

app = Duly()


@app.task
def plain(order_id: int) -> str:
    return str(order_id)


@app.task(retries=3, queue="mail", timeout=5)
def with_options(order_id: int, *, email: str = "") -> list[int]:
    return [order_id, len(email)]


assert_type(plain(1), str)
assert_type(plain.enqueue(1), Run[str])
assert_type(plain.enqueue(1).result(timeout=1), str)
assert_type(with_options.using(key="k", delay=3).enqueue(1, email="a@b.c"), Run[list[int]])
assert_type(app.enqueue_many(plain.call(number) for number in range(3)), list[Run[str]])


async def from_a_loop() -> None:
    run = await plain.aenqueue(1)
    assert_type(run, Run[str])
    assert_type(await run.aresult(timeout=1), str)


def takes_a_task(task: Task[[int], str]) -> Run[str]:
    return task.enqueue(1)


takes_a_task(plain)

plain.enqueue("1")  # type: ignore[arg-type]
plain.enqueue()  # type: ignore[call-arg]
plain.enqueue(1, 2)  # type: ignore[call-arg]
plain.call(order="1")  # type: ignore[call-arg]
with_options.using(colour="red")  # type: ignore[arg-type]
with_options.using(key=1)  # type: ignore[arg-type]
app.task(colour="red")  # type: ignore[call-overload]
