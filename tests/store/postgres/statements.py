"""The statements of the store that handle rows of growing tables, and their parameters."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from duly.limits import TRANSACTION_BYTES
from duly.store.postgres.arrays import flags, numbers, texts
from duly.store.postgres.external import BY_INDEX
from duly.store.postgres.session_settings import HOT, WORK
from duly.store.postgres.store import READING
from duly.store.statements import load
from tests.store.conformance.verbs import LANE, OTHER_TASK, TASK, WORKER
from tests.store.postgres.plans import (
    BATCH,
    DELAYED,
    FAILED,
    FINISHED,
    HANDED,
    LIMITED_LANE,
    NEW,
    ORPHANED,
    QUEUED,
    RUNNING,
    id_of,
    ids_of,
)
from tests.store.postgres.verbs import PLACE

YEAR = 365 * 86_400_000_000
RUN = {"run_id": id_of(RUNNING, 1), "claim_number": 1}
ENDED = {"run_id": id_of(FINISHED, 1)}
STEP = RUN | {
    "name": "wait",
    "kind": "wait",
    "awaited": "event 1",
    "after": 0,
    "inside": None,
    "result": "1",
}


def endings(count: int) -> dict[str, Any]:
    """Return the columns of runs that end."""
    return claims(count) | {
        "outcomes": texts(["returned"] * count),
        "elapsed": numbers([1] * count),
        "errors": None,
        "tracebacks": None,
        "fingerprints": None,
        "states": texts(["succeeded"] * count),
        "causes": None,
        "results": None,
    }


def requeues(count: int) -> dict[str, Any]:
    """Return the columns of runs that queue again, half of them later."""
    return endings(count) | {
        "lanes": texts([LANE] * count),
        "attempts": numbers([2] * count),
        "retries_used": numbers([1] * count),
        "crashes": numbers([0] * count),
        "afters": numbers([number % 2 * 1_000_000 for number in range(count)]),
        "recorded": flags([True] * count),
    }


def claims(count: int) -> dict[str, Any]:
    """Return the ids and claims of running runs."""
    return {"ids": texts(ids_of(RUNNING, count=count)), "claim_numbers": numbers([1] * count)}


KEYS = {
    "tasks": texts([TASK] * BATCH),
    "keys": texts([f"key {number}" for number in range(1, BATCH + 1)]),
}
HOME = {"tasks": texts([TASK, OTHER_TASK]), "lanes": texts([LANE, LANE]), "limit": BATCH}
TICK = {"limit": BATCH, "bytes": TRANSACTION_BYTES, "queues": BATCH}
OLD = {
    "older_than": YEAR,
    "dead_older_than": YEAR,
    "acts_older_than": YEAR,
    "others_older_than": YEAR,
    "limit": BATCH,
    "look": 1,
    "bytes": TRANSACTION_BYTES,
    "parent_tag": "parent",
    "parent_look": 1,
}


class Case(NamedTuple):
    """A statement, its parameters, how many rows it handles, and the settings of its session."""

    name: str
    place: Mapping[str, Any]
    rows: int = BATCH
    settings: Mapping[str, str] = HOT

    @property
    def sql(self) -> str:
        """The text of the statement."""
        stem, name = self.name.split(".")
        return load("postgres", stem)[name]


CASES = [
    Case("claim.take", PLACE | {"limits": numbers([BATCH])}),
    Case(
        "claim.take_from_queue",
        PLACE | {"queue": "default", "lane": LANE, "room": BATCH},
    ),
    Case(
        "claim.take_limited",
        PLACE | {"lane": LIMITED_LANE, "queue": None, "closed": "{}", "room": BATCH},
    ),
    Case(
        "claim.take_carried",
        {
            "worker_id": WORKER,
            "run_id": id_of(HANDED, 1),
            "claim_number": 0,
            "counted": False,
            "last": "0",
        },
        1,
    ),
    Case("claim.queue_of_carried", RUN, 1),
    Case("claim.carried", RUN | {"worker_id": WORKER}, 1),
    Case("claim.taken", {"worker_id": WORKER, "last": 0}, 2 * BATCH),
    Case("claim.latest_claim", {"worker_id": WORKER}, 2 * BATCH),
    Case("claim.limited_lanes", {"after": "", "most": BATCH}),
    Case("claim.limited_queues", {}),
    Case("claim.running_in_queue", {"queue": "default"}, 4 * BATCH),
    Case("claim.running_in_limit", {"name": LIMITED_LANE}),
    Case("claim.note_limit_floor", {"name": LIMITED_LANE, "oldest": "0", "margin": 0}, 1),
    Case("inspect.peek", {"carried": "{}"}, 4, READING),  # In as many lanes.
    Case("inspect.cancel_requests", {"worker_id": WORKER}, 1, READING),
    Case("enqueue.size", {"queue": "default", "limit": BATCH}),
    Case("floors.newest", {}, 1, READING),
    Case("settle.finish", endings(BATCH), 2 * BATCH),  # Runs and their keys.
    Case("settle.requeue", requeues(BATCH), 2 * BATCH),  # Runs and their attempts.
    Case("settle.recorded", claims(BATCH)),
    Case(
        "settle.recorded",
        {"ids": texts(ids_of(FINISHED)), "claim_numbers": numbers([1] * BATCH)},
    ),
    *(
        Case(f"tick.{name}", TICK, rows, WORK)
        for name, rows in [
            ("unpark", BATCH),
            ("promote", BATCH),
            ("park", BATCH),
            ("expire", BATCH),
            ("next_due", 1),
        ]
    ),
    Case("tick.note_reached", {"name": "parked", "reached": "default"}, 1, WORK),
    Case("recover.held", {"worker_id": WORKER}, 2 * BATCH, WORK),
    Case("recover.orphans", {"limit": BATCH}, settings=WORK),
    Case("recover.still_orphaned", {"ids": texts(ids_of(ORPHANED))}, settings=WORK),
    Case(
        "enqueue.accept",
        {
            "ids": texts(ids_of(NEW)),
            "tasks": texts([TASK] * BATCH),
            "queues": texts(["default"] * BATCH),
            "lanes": texts([LANE] * BATCH),
            "priorities": numbers([0] * BATCH),
            "arguments": texts(["x"] * BATCH),
            "expires": None,
            "delays": numbers([0, 1_000_000] * (BATCH // 2)),
            "ats": None,
            "tags": texts(['{"name": "value"}'] * BATCH),
            "keys": texts([f"new {number}" for number in range(BATCH)]),
        },
        2 * BATCH,  # Runs and their tags.
    ),
    Case("enqueue.known", {"ids": texts(ids_of(FINISHED))}),
    Case(
        "enqueue.take_key",
        KEYS
        | {
            "ids": texts(ids_of(NEW)),
            "fingerprints": texts(["x"] * BATCH),
            "ttls": None,
            "active_only": flags([True] * BATCH),
        },
    ),
    Case("enqueue.read_key", KEYS),
    Case(
        "enqueue.enqueue_in_callers_transaction",
        {
            "run_id": id_of(NEW, 1),
            "task": TASK,
            "queue": "default",
            "lane": LANE,
            "priority": 0,
            "arguments": "x",
            "delay": 0,
            "at": None,
            "expires": None,
            "tags": None,
            "key": "new",
            "fingerprint": "",
            "ttl": None,
            "active_only": True,
            "other_names": f"{OTHER_TASK} shop:older",
            "hint": False,
        },
        3,  # Its key has a row for each name of the task.
    ),
    Case("enqueue.give_up_keys", {"ids": texts(ids_of(RUNNING))}),
    Case("enqueue.key_in_force", {"task": TASK, "key": "key 1"}, 1),
    Case("steps.holds", RUN, 1, WORK),
    Case("steps.begin", STEP | {"name": "another"}, 1, WORK),
    Case("steps.conclude", STEP, 1, WORK),
    Case("steps.end", STEP, 1, WORK),
    Case("steps.forget", STEP, 1, WORK),
    Case("steps.one", STEP, 1, WORK),
    Case("steps.all", STEP, 2, WORK),
    Case("steps.begun", STEP, 2, WORK),
    Case("steps.lock_ended", ENDED, 1, WORK),
    Case(
        "settle.lock_waits",
        {"ids": texts(ids_of(RUNNING)), "names": texts(["wait"] * BATCH)},
        settings=WORK,
    ),
    *(
        Case(
            "settle.is_wait_satisfied",
            {"ids": texts(ids_of(RUNNING)), "names": texts([name] * BATCH)},
            settings=WORK,
        )
        for name in ("wait", "gather")
    ),
    Case("steps.send", {"name": "another", "payload": "1", "hint": True}, 1, WORK),
    Case("steps.take_wakeups", {"limit": BATCH}, settings=WORK),
    Case("steps.rouse_waiting", {"names": texts(["event 1000001"])}, 1, WORK),
    Case("steps.wake", {"run_ids": texts(ids_of(DELAYED))}, settings=WORK),
    Case("steps.pending", {"after": id_of(DELAYED, 1000), "limit": BATCH}, settings=WORK),
    Case("steps.counted", {"longest": 600.0}, 1, WORK),
    Case("steps.note_rechecked", {"counted": "1 1"}, 1, WORK),
    Case("tick.lock_duty", {"duty": "tick", "longest": "300s"}, 1, WORK),
    Case("tick.take_turn", {"duty": "tick", "seconds": 5.0, "longest": "300s"}, 1, WORK),
    Case("journal.progress", RUN | {"fraction": 0.5, "text": "half"}, 1, WORK),
    Case("journal.holds", RUN, 1, WORK),
    Case("journal.lock", RUN, 1, WORK),
    Case("journal.known", RUN, 1, WORK),
    # Runs and their marks.
    Case("carry.fresh", {"tasks": texts([TASK]), "limit": BATCH, "stale": 1}, 2 * BATCH, WORK),
    Case(
        "carry.stale",
        {"tasks": texts([TASK]), "limit": BATCH, "stale": 1, "most": 3, "longest": 9},
        settings=WORK,
    ),
    Case("carry.drop_marks", {"run_ids": texts(ids_of(HANDED))}, settings=WORK),
    Case("carry.unsent", {"run_ids": texts(ids_of(HANDED)), "after": 1}, settings=WORK),
    Case("carry.bring_back", HOME, 2 * BATCH, WORK),  # Runs and their marks.
    Case(
        "carry.send_away",
        HOME | {"lanes": texts(["carried"] * 2), "queues": BATCH},
        2 * BATCH,  # Those that it looks at, and those that it moves.
        WORK,
    ),
    Case("carry.resume", {"queue": "default"}, 2 * BATCH, WORK),
    Case(
        "schedules.due",
        {"limit": BATCH, "at_least": 0, "less_than": YEAR},
        3 * BATCH,  # With the runs that each of them is asked for.
        WORK,
    ),
    Case(
        "schedules.lock_free",
        {"names": texts([f"schedule {number}" for number in range(1, BATCH + 1)])},
        settings=WORK,
    ),
    Case("schedules.live", {"run_id": id_of(QUEUED, 1)}, 1, WORK),
    Case("schedules.failures", {"schedule": "schedule 1", "limit": BATCH}, 1, WORK),
    Case("schedules.release", {"schedule": "schedule 1", "run_id": id_of(QUEUED, 1)}, 1, WORK),
    Case(
        "schedules.move",
        {
            "names": texts([f"schedule {number}" for number in range(1, BATCH + 1)]),
            "next_ats": numbers([1] * BATCH),
            "look_ats": numbers([1] * BATCH),
            "waiting": numbers([0] * BATCH),
            "states": texts(["active"] * BATCH),
            "reasons": None,
            "last_run_ids": None,
        },
        settings=WORK,
    ),
    Case(
        "operate.end_queued",
        {"run_id": id_of(QUEUED, 1), "state": "cancelled", "cause": "x", "error": None},
        1,
        WORK,
    ),
    Case("operate.ask_cancel", RUN, 1, WORK),
    Case("operate.queued", {"run_id": id_of(QUEUED, 1)}, 2, WORK),
    *(
        Case(
            "operate.reschedule",
            {
                "run_id": id_of(kind, 1),
                "claim_number": 0,
                "lane": LANE,
                "due_before": 0,
                "queue": "mail",
                "priority": None,
                "due_at": 0,
                "is_due": True,
            },
            1,
            WORK,
        )
        for kind in (QUEUED, DELAYED)
    ),
    Case("operate.live_holder", ENDED | {"other_names": "{shop:old,shop:older}"}, 3, WORK),
    Case(
        "operate.hold_key_again",
        {
            "run_id": id_of(FINISHED, 1),
            "states": "{succeeded}",
            "generation": None,
            "other_names": "{shop:old,shop:older}",
        },
        3,
        WORK,
    ),
    Case("operate.reset_key", {"task": TASK, "key": "key 1", "run_id": None}, 1, WORK),
    Case(
        "operate.revive",
        {
            "run_id": id_of(FINISHED, 1),
            "states": "{succeeded}",
            "generation": None,
            "lane": None,
            "delay": 0,
            "arguments": None,
            "change": "redriven",
        },
        1,
        WORK,
    ),
    Case("operate.discard", {"run_id": id_of(FAILED, 1), "change": "discarded"}, 1, WORK),
    Case(
        "operate.revive",
        {
            "run_id": id_of(FAILED, 1),
            "states": "{failed,interrupted}",
            "generation": None,
            "lane": None,
            "delay": 0,
            "arguments": None,
            "change": "redriven",
        },
        1,
        WORK,
    ),
    Case(
        "operate.hold_key_again",
        {
            "run_id": id_of(FAILED, 1),
            "states": "{failed,interrupted}",
            "generation": None,
            "other_names": "{shop:old,shop:older}",
        },
        3,
        WORK,
    ),
    *(
        Case(f"prune.{name}", OLD | {"after": 0, "ended_from": 0, "kept_from": 0}, rows, WORK)
        for name, rows in [
            ("drop_runs", 2 * BATCH),  # With attempts, log lines and tags.
            ("drop_keys", BATCH),
            ("drop_firings", BATCH),
            ("drop_events", BATCH),
            ("drop_schedules", BATCH),
            ("drop_locks", BATCH),
            ("drop_acts", BATCH),
            ("drop_marks", BATCH),
            ("brief", BATCH),
        ]
    ),
]

_OF_CALLERS = {"enqueue.enqueue_in_callers_transaction", "steps.send"}
_OF_BODIES = {"journal.holds", "journal.progress", "steps.end", "steps.holds", "steps.one"}
_BY_BODIES_ENDS = {"settle.is_wait_satisfied", "settle.lock_waits"}
_AT_THE_END = {"enable_seqscan": "off"}
"""The settings of such a session before these statements, so that they use indexes."""

IN_CALLERS_SESSIONS = [case._replace(settings={}) for case in CASES if case.name in _OF_CALLERS]
"""The statements in the session of a caller, whose driver may prepare them."""
IN_BODIES_SESSIONS = [
    *(case._replace(settings={}) for case in CASES if case.name in _OF_BODIES),
    *(case._replace(settings=_AT_THE_END) for case in CASES if case.name in _BY_BODIES_ENDS),
    Case("settle.finish", endings(1), 2, _AT_THE_END),  # A run and its key.
    Case("settle.requeue", requeues(1), 2, _AT_THE_END),  # A run and its attempt.
    Case("settle.recorded", claims(1), 1, _AT_THE_END),
]
"""The statements for one run in the session of a body, where no plan is kept."""
IN_BORROWED_SESSIONS = [case._replace(settings=BY_INDEX) for case in CASES]
"""A store on a connection of Django runs all of them there, and keeps no plan either."""
