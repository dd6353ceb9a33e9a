"""Tasks that run once, at a time chosen while the program runs."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from duly import Duly, Task
from duly.actor import resolve_actor
from duly.compat.fastapi_taskflow.admission import RUN_KEY_TAG
from duly.compat.fastapi_taskflow.context import func_name
from duly.compat.fastapi_taskflow.encryption import token_of
from duly.compat.fastapi_taskflow.enqueue import AddTaskOptions, accept_run
from duly.compat.fastapi_taskflow.records import arguments_of, iso, now
from duly.core.instants import moment
from duly.core.key import check_key
from duly.core.record import RunRecord
from duly.core.states import RESERVED_TAGS, plain_tags, stored_tags
from duly.errors import BadOption
from duly.limits import PAGE, TAG_CHARACTERS
from duly.store.ops.operators import Cancel, ResetKey
from duly.store.reads import RunFilter

_ONCE_TAG = f"{RESERVED_TAGS}once"
_ONCE = (_ONCE_TAG, "1")
_YEAR = timedelta(days=365)


@dataclass
class ScheduledOnce:
    """A task that waits for its time."""

    run_key: str
    func_name: str
    fire_at: datetime
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    encrypted_payload: bytes | None = field(default=None, repr=False)
    """The token of the stored arguments, if `encrypt_args_key` is set."""
    queue: str = "default"
    priority: int | None = None
    idempotency_key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    created_at: datetime = field(default_factory=now)
    task_id: str = ""
    """The id of the waiting run. In fastapi-taskflow a waiting task has no id yet."""

    def to_dict(self) -> dict[str, Any]:
        """Return the task as JSON data, without its arguments."""
        return {
            "run_key": self.run_key,
            "func_name": self.func_name,
            "fire_at": iso(self.fire_at),
            "queue": self.queue,
            "priority": self.priority,
            "tags": dict(self.tags),
            "created_at": iso(self.created_at),
        }


class OneTimeTasks:
    """The one-time tasks of a manager by run key. Of several with one key, the newest is valid."""

    def __init__(self, duly: Duly) -> None:
        self._duly = duly

    def schedule(
        self,
        task: Task[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        wish: AddTaskOptions,
        *,
        run_at: datetime,
        run_key: str,
    ) -> None:
        """Run a task at that time. It replaces a task that waits under the same run key."""
        check_key(run_key, "run_key", TAG_CHARACTERS)
        if not isinstance(run_at, datetime):
            raise BadOption(f"run_at must be a datetime, not {run_at!r:.80}")
        before = list(self._waiting((RUN_KEY_TAG, run_key)))
        key = wish.idempotency_key
        for run in before:
            if key is not None and run.key == key:
                # Otherwise the idempotency key would return the run that must be replaced.
                self._duly.store.do(ResetKey(task.name, key, resolve_actor(None), run.id))
        bound = task.using(
            at=_zoned(run_at), key=key, tags=wish.tags, priority=wish.priority, queue=wish.queue
        )
        new = accept_run(self._duly, bound, args, kwargs, reserved=self.tags_of(run_key))
        # If this process dies here, earlier runs still detect that they were replaced.
        self._cancel([run for run in before if run.id != new.id], "scheduled again")

    def tags_of(self, run_key: str) -> dict[str, str]:
        """Return the tags of a run that waits under a key."""
        return {RUN_KEY_TAG: check_key(run_key, "run_key", TAG_CHARACTERS), _ONCE_TAG: "1"}

    def is_waiting(self, run_key: str) -> bool:
        """Return whether a run waits under a key."""
        return any(self._waiting((RUN_KEY_TAG, run_key)))

    def cancel(self, run_key: str) -> bool:
        """Cancel the task that waits under a key. Return whether there was one."""
        check_key(run_key, "run_key", TAG_CHARACTERS)
        return self._cancel(list(self._waiting((RUN_KEY_TAG, run_key))), "cancelled by its key")

    def due(self, before: datetime | None) -> list[ScheduledOnce]:
        """Return the waiting tasks that are due by then, the earliest first."""
        until = moment(self._duly.store.now()) + _YEAR if before is None else _zoned(before)
        found = [self._shown(run) for run in self._waiting(_ONCE)]
        return sorted(
            (each for each in found if each.fire_at <= until), key=lambda each: each.fire_at
        )

    def _waiting(self, tag: tuple[str, str]) -> Iterator[RunRecord]:
        which = RunFilter(states=("queued",), tag=tag, limit=PAGE)
        while page := self._duly.store.list_runs(which):
            # A claimed run has started. If it is queued again, it waits for another attempt.
            yield from (run for run in page if run.claim_number == 0)
            which = which._replace(before=page[-1].id)

    def _cancel(self, runs: list[RunRecord], reason: str) -> bool:
        ops = [Cancel(run.id, resolve_actor(None), reason) for run in runs]
        answers = self._duly.store.apply(ops) if ops else []
        return any(answer in {"cancelled", "requested"} for answer in answers)

    def _shown(self, run: RunRecord) -> ScheduledOnce:
        tags = stored_tags(run.tags)
        token = token_of(run.arguments)
        args, kwargs = arguments_of(self._duly, run) if token is None else ((), {})
        return ScheduledOnce(
            tags[RUN_KEY_TAG],
            func_name(run.task),
            moment(run.due_at),
            args,
            kwargs,
            None if token is None else token.encode(),
            run.queue,
            run.priority or None,
            run.key,
            plain_tags(tags),
            moment(run.created_at),
            run.id,
        )


def _zoned(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time
