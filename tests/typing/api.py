"""The types of the public API, checked by mypy: what is wrong here must be an error there."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

import duly
from duly import Duly, Retry, Run, Task, current
from duly.api.bulk_writes import BulkResult
from duly.api.runs import Filter, Page
from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, TaskManager
from duly.core.record import AttemptRecord, LogLine, RunRecord
from duly.core.states import State
from duly.guard import Guard, GuardClaim, make_key
from duly.guard.dead_letters import DeadLetterResult
from duly.store.ops.guard import DeadLetterRecord, GuardedKey
from duly.worker.embedded_worker import EmbeddedWorker

app = Duly()


@app.task
def plain(order_id: int) -> str:
    return str(order_id)


@app.task()
def bare_call(order_id: int) -> str:
    return str(order_id)


@app.task(
    retries=Retry(
        5,
        base=2,
        factor=2,
        max_delay=600,
        jitter=True,
        on=(ConnectionError, OSError),
        give_up_on=(PermissionError,),
    ),
    queue="mail",
    timeout=5,
    aliases=("old:name",),
    redact=("email",),
    key_ttl=None,
)
def with_options(order_id: int, *, email: str = "") -> list[int]:
    return [order_id, len(email)]


@app.task(on_crash="hold", priority=3, expires=60, unique="active", executor="loop")
async def coroutine(order_id: int) -> str:
    return str(order_id)


@app.task(transaction=True)
def nothing() -> None: ...


@app.task
def variadic(*numbers: int, **texts: str) -> int:
    return len(numbers) + len(texts)


# -- a task keeps the signature of its function --

assert_type(plain(1), str)
assert_type(with_options(1, email="a@b.c"), list[int])
assert_type(plain.name, str)
variadic(1, 2, three="3")
variadic.enqueue(1, 2, three="3")

plain("1")  # type: ignore[arg-type]
plain()  # type: ignore[call-arg]
with_options(1, "a@b.c")  # type: ignore[call-arg]
variadic.enqueue("1")  # type: ignore[arg-type]

# -- enqueueing is typed by the signature, the run by the result --

assert_type(plain.enqueue(1), Run[str])
assert_type(plain.enqueue(order_id=1).result(timeout=1), str)
assert_type(plain.enqueue(1).result(), str)
assert_type(nothing.enqueue().result(), None)
assert_type(with_options.using(key="k", delay=3).enqueue(1, email="a@b.c"), Run[list[int]])
assert_type(app.enqueue_many(plain.call(number) for number in range(3)), list[Run[str]])
assert_type(app.enqueue_many([plain.using(key="k").call(1)]), list[Run[str]])

plain.enqueue("1")  # type: ignore[arg-type]
plain.enqueue()  # type: ignore[call-arg]
plain.enqueue(1, 2)  # type: ignore[call-arg]
plain.enqueue(order=1)  # type: ignore[call-arg]
plain.call(order="1")  # type: ignore[call-arg]
plain.call(None)  # type: ignore[arg-type]
with_options.enqueue(1, mail="a@b.c")  # type: ignore[call-arg]
plain.using(key="k").enqueue("1")  # type: ignore[arg-type]
app.enqueue_many([plain.enqueue(1)])  # type: ignore[arg-type]


async def from_a_loop() -> None:
    run = await plain.aenqueue(1)
    assert_type(run, Run[str])
    assert_type(await run.aresult(timeout=1), str)
    assert_type(await with_options.using(queue="x").aenqueue(1), Run[list[int]])
    assert_type(await coroutine(1), str)
    await plain.aenqueue("1")  # type: ignore[arg-type]
    await plain.aenqueue()  # type: ignore[call-arg]


# -- options of a call --

plain.using(
    key="k",
    delay=timedelta(hours=1),
    queue="mail",
    priority=5,
    tags={"tenant": "x"},
    expires=3600,
    unique="active",
).enqueue(1)
plain.using(at=datetime(2030, 1, 1, tzinfo=UTC)).call(1)

with_options.using(colour="red")  # type: ignore[arg-type]
with_options.using(key=1)  # type: ignore[arg-type]
with_options.using(delay="soon")  # type: ignore[arg-type]
with_options.using(at="2030-01-01")  # type: ignore[arg-type]
with_options.using(tags={"tenant": 7})  # type: ignore[dict-item]
with_options.using(priority="high")  # type: ignore[arg-type]
with_options.using("key")  # type: ignore[call-arg]

# -- options of a task --

app.task(colour="red")  # type: ignore[call-overload]
app.task(retries="3")  # type: ignore[call-overload]
Retry(1, on=OSError)  # type: ignore[arg-type]
app.task("name")  # type: ignore[call-overload]

# -- a task and a run as values --


def takes_a_task(task: Task[[int], str]) -> Run[str]:
    return task.enqueue(1)


def takes_a_function(function: Callable[[int], str]) -> str:
    return function(1)


takes_a_task(plain)
takes_a_task(bare_call)
takes_a_function(plain)
takes_a_task(nothing)  # type: ignore[arg-type]
takes_a_task(with_options)  # type: ignore[arg-type]

run = plain.enqueue(1)
assert_type(run.id, str)
assert_type(run.new, bool)
assert_type(run.state, State)
assert_type(run.cause, str | None)
assert_type(run.record, RunRecord)
assert_type(run.refresh(), Run[str])
assert_type(run.retry(), Run[str])
assert_type(run.retry(arguments=((1,), {})), Run[str])
assert_type(run.cancel(reason="no need"), str)
assert_type(run.reschedule(delay=timedelta(minutes=5), priority=3), Run[str])
assert_type(run.attempts(), list[AttemptRecord])
assert_type(run.logs(limit=10), list[LogLine])
run.result(timeout="1")  # type: ignore[arg-type]
run.cancel("no need")  # type: ignore[call-arg]

# -- looking and operating --

assert_type(app.runs.get("id"), Run[Any])
assert_type(app.runs.list(state="failed", task=plain, tag="tenant=x", limit=5), Page)
assert_type(app.runs.list(state=["failed", "queued"]).cursor, str | None)
assert_type(app.dead.retry(which=Filter(task=plain), rate=10), BulkResult)
assert_type(app.dead.discard("id", reason="old"), BulkResult)
assert_type(app.reset_key(plain, "k"), bool)
app.dead.discard("id")  # type: ignore[call-arg]
app.runs.list("failed")  # type: ignore[call-arg]
app.queues.pause(name=1)  # type: ignore[arg-type]

# -- working --

assert_type(app.worker(concurrency=2, queues="mail:2", lease=15, grace=5), EmbeddedWorker)
with app.worker() as worker:
    assert_type(worker, EmbeddedWorker)
app.worker().drain(timeout=5)
app.worker(2)  # type: ignore[call-arg]
app.worker(queues=["mail"])  # type: ignore[arg-type]

# -- inside a task --

context = current()
assert_type(context.run_id, str)
assert_type(context.attempt, int)
assert_type(context.fence, int)
assert_type(context.deadline, float | None)
assert_type(context.tags, dict[str, str])
context.progress(0.5, "half")
context.progress(text="half")
context.check_cancelled()
context.log.info("sent %s of %s", 1, 2)
context.progress("half")  # type: ignore[arg-type]

# -- the guard --

guard = Guard("sqlite:///guard.db", namespace="shop", lease=5, ttl=None)
with guard.once("key", payload={"total": 12}, wait=1, ttl=60) as claim:
    assert_type(claim, GuardClaim)
    assert_type(claim.first, bool)
    assert_type(claim.fence, int)
    claim.done({"number": 7})


async def guarded() -> None:
    async with guard.once("key") as held:
        assert_type(held, GuardClaim)
        await held.adone()


assert_type(guard.look("key"), GuardedKey | None)
assert_type(guard.reset("key"), bool)
assert_type(make_key("task", (1,), {}, takes_a_function), str)
assert_type(guard.letters.list(engine="celery"), Sequence[DeadLetterRecord])
assert_type(guard.letters.replay(["id"]), DeadLetterResult)
assert_type(guard.letters.discard("id", actor="ann"), DeadLetterResult)
guard.once(7)  # type: ignore[arg-type]
guard.once("key", 60)  # type: ignore[call-arg]
Guard(lease="5")  # type: ignore[arg-type]

# -- fastapi-taskflow's shape --

manager = TaskManager(snapshot_db="tasks.db", max_sync_threads=4)


@manager.task(retries=3, persist=True)
def managed(order_id: int) -> str:
    return str(order_id)


@manager.schedule(every=60)
async def periodic() -> None: ...


async def adds(tasks: ManagedBackgroundTasks) -> None:
    assert_type(managed(1), str)
    assert_type(tasks.add_task(managed, 1, tags={"tenant": "x"}), str)
    assert_type(await tasks.aadd_task(managed, order_id=1), str)
    managed("1")  # type: ignore[arg-type]


manager.task(retry=3)  # type: ignore[call-arg]

misspelt = duly.Dully  # type: ignore[attr-defined]
busy: type[duly.errors.DulyError] = duly.errors.LockBusy
