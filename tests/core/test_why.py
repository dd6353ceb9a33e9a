"""The reason why a run is not running, according to the store."""

import pytest

from duly.core.concurrency_limits import limited_lane
from duly.core.record import AttemptRecord, LimitHolder, RunRecord, StepRecord, WorkerRecord
from duly.core.why import Situation, current_wait, why

SECOND = 1_000_000
NOW = 1_800_000_000 * SECOND
RUN = RunRecord(
    id="run",
    task="shop:send",
    queue="mail",
    lane="thread",
    state="queued",
    cause=None,
    priority=0,
    generation=1,
    claim_number=0,
    attempt=1,
    retries_used=0,
    crashes=0,
    created_at=NOW,
    due_at=NOW,
    expires_at=None,
    claimed_at=None,
    finished_at=None,
    worker_id=None,
    cancel_requested=False,
    parked=None,
    key=None,
    tags=None,
    arguments="[[],{}]",
    result=None,
    error=None,
    traceback=None,
    fingerprint=None,
    progress=None,
    progress_text=None,
)
WORKER = WorkerRecord(
    id="worker",
    state="live",
    host="host",
    pid=4711,
    started_at=NOW,
    seen_at=NOW,
    stopped_at=None,
    lease_seconds=15.0,
    queues="[]",
    tasks='["shop:send"]',
    running=3,
)
SITUATION = Situation(
    now=NOW, store="/data/duly.db", workers=[WORKER], is_paused=False, waits_in=None, last=None
)
FAILED = AttemptRecord("run", 1, 1, 1, "raised", None, NOW, NOW, "OSError: no route\nat", None)
SUSPENDED = FAILED._replace(outcome="suspended", error=None)
SLEEP = StepRecord("run", "rest", "sleep", False, None, NOW + 60 * SECOND, None, 1, NOW, None)
EVENT = SLEEP._replace(name="paid?", kind="wait", awaited="paid", wake_at=None)
CHILDREN = EVENT._replace(kind="gather", awaited='["a", "b"]')
LIMITED = RUN._replace(lane=limited_lane("thread", "shop:send"))
HOLDER = LimitHolder("task", None, "first", "worker")
LATER = RUN._replace(due_at=NOW + 90 * SECOND)
RUNNING = RUN._replace(state="running", worker_id="worker", claimed_at=NOW - 7 * SECOND)
SILENT = WORKER._replace(state="silent", seen_at=NOW - 16 * SECOND)
CASES = [
    (RUN._replace(state="failed", cause="raised", finished_at=NOW), {}, "ended", "failed (raised)"),
    (
        RUN._replace(state="failed", finished_at=NOW, error="OSError: no route\nat"),
        {},
        "ended",
        "2027-01-15 08:00:00 UTC (now); its last error is OSError: no route",
    ),
    (RUN._replace(state="interrupted", finished_at=NOW), {}, "ended", "find out, then retry or"),
    (RUNNING, {}, "running", "worker worker (pid 4711 on host) has been running it for 7 s"),
    (RUNNING._replace(cancel_requested=True), {}, "running", "cancellation was requested"),
    (RUNNING, {"workers": [SILENT]}, "lost", "no longer live"),
    (RUNNING, {"workers": []}, "lost", "no longer live"),
    (RUN._replace(expires_at=NOW - SECOND), {}, "expired", "should have started before"),
    (LATER, {}, "later", "due at 2027-01-15 08:01:30 UTC (in 1 min)"),
    (LATER, {"is_paused": True}, "later", "due at"),
    (
        LATER,
        {"last": FAILED},
        "backing_off",
        "attempt 1 ended (raised): OSError: no route; the next",
    ),
    (LATER._replace(generation=2), {"last": FAILED}, "later", "due at"),
    (LATER, {"waits_in": SLEEP}, "sleeping", "step 'rest' until 2027-01-15 08:01:00"),
    (LATER, {"waits_in": EVENT}, "waiting", "waits for event 'paid'"),
    (LATER, {"waits_in": CHILDREN}, "waiting", "the end of 2 child runs"),
    (
        RUN,
        {"is_paused": True},
        "paused",
        "queue 'mail' is paused; resume it with `duly queues resume mail`",
    ),
    (RUN, {"workers": []}, "no_worker", "no worker has been seen on /data/duly.db; start one"),
    (RUN, {"workers": []}, "no_worker", "start one with `duly worker module:app`; if"),
    (RUN, {"workers": [], "app": "shop:app"}, "no_worker", "start one with `duly worker`; if"),
    (
        LIMITED,
        {"holders": [HOLDER], "knows_task": False},
        "limit",
        "pass --app module:attribute, to see how many runs",
    ),
    (
        LIMITED,
        {"holders": [HOLDER], "knows_task": False, "app": "shop:app"},
        "limit",
        "shop:app does not define the task: pass --app of the application that does, to see how",
    ),
    (RUN, {"workers": [SILENT]}, "no_worker", "seen since 2027-01-15 07:59:44 UTC (16 s ago) on"),
    (RUN, {"workers": [WORKER._replace(state="stopped")]}, "no_worker", "another store"),
    (
        RUN,
        {"workers": [WORKER._replace(tasks='["store:send", "shop:bill"]')]},
        "not_registered",
        "no live worker knows task 'shop:send' on /data/duly.db; live workers know store:send:",
    ),
    (
        RUN,
        {"workers": [WORKER._replace(tasks="[]")]},
        "not_registered",
        "live workers know no task",
    ),
    (
        RUN,
        {"workers": [WORKER._replace(queues='{"except": ["mail", "slow"]}')]},
        "other_queue",
        "these workers serve all except mail, slow:",
    ),
    (RUN, {"workers": [WORKER._replace(queues='{"except": ["slow"]}')]}, "slots", "a free slot"),
    (
        RUN,
        {"workers": [WORKER._replace(queues='["default"]')]},
        "other_queue",
        "serves queue 'mail'; these workers serve default: start one with -q mail",
    ),
    (RUN._replace(lane="handed"), {}, "carried", "sent there and waits for a worker"),
    (RUN._replace(lane="suspect"), {}, "suspect", "runs nothing else"),
    (RUN, {}, "slots", "a free slot of 1 live worker; 3 runs are running there now"),
]


@pytest.mark.parametrize(("run", "facts", "cause", "words"), CASES)
def test_the_reason_for_a_run_has_the_expected_cause_and_sentence(run, facts, cause, words):
    reason = why(run, SITUATION._replace(**facts))

    assert (reason.cause, words in reason.sentence) == (cause, True), reason


@pytest.mark.parametrize(
    ("steps", "attempts", "wait"),
    [
        ([SLEEP, EVENT], [FAILED, SUSPENDED], EVENT),
        ([SLEEP, EVENT._replace(done=True)], [SUSPENDED], SLEEP),
        ([SLEEP._replace(kind="step")], [SUSPENDED], None),
        ([SLEEP], [SUSPENDED, FAILED], None),
        ([], [], None),
    ],
)
def test_a_run_waits_in_a_step_only_if_its_last_attempt_was_suspended(steps, attempts, wait):
    assert current_wait(steps, attempts) == wait
