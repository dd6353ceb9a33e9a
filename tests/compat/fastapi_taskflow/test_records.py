"""`TaskRecord` and `ScheduledOnce`, made by hand as users of fastapi-taskflow make them."""

from datetime import UTC, datetime

from duly.compat.fastapi_taskflow import ScheduledOnce, TaskRecord, TaskStatus

NAIVE = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - what fastapi-taskflow takes for UTC


def test_a_record_needs_an_id_a_name_and_a_status():
    before = datetime.now(UTC)

    record = TaskRecord("t1", "send", TaskStatus.PENDING)

    assert before <= record.created_at <= datetime.now(UTC)
    assert (record.duration, record.priority, record.queue) == (None, None, "default")


def test_the_fields_of_a_record_are_in_the_order_of_fastapi_taskflow():
    record = TaskRecord("t1", "send", TaskStatus.SUCCESS, (1,), {"a": 2}, NAIVE, NAIVE, NAIVE, 3)

    assert (record.args, record.kwargs, record.created_at) == ((1,), {"a": 2}, NAIVE)
    assert (record.start_time, record.end_time, record.retries_used) == (NAIVE, NAIVE, 3)
    assert record.duration == 0.0


def test_a_time_without_a_zone_is_shown_as_utc():
    times = {"created_at": NAIVE, "start_time": NAIVE, "end_time": NAIVE}

    shown = TaskRecord("t1", "send", TaskStatus.SUCCESS, **times).to_dict()
    once = ScheduledOnce("k", "send", NAIVE, created_at=NAIVE).to_dict()

    assert {shown[name] for name in times} == {"2024-01-01T12:00:00+00:00"}
    assert {once["fire_at"], once["created_at"]} == {"2024-01-01T12:00:00+00:00"}


def test_a_record_is_made_again_from_what_it_shows():
    record = TaskRecord("t1", "send", TaskStatus.FAILED, error="no", tags={"a": "b"}, priority=5)

    again = TaskRecord.from_dict(record.to_dict())

    assert again == record
    assert TaskRecord.from_dict(
        {"task_id": "t", "func_name": "f", "status": "pending", "created_at": NAIVE.isoformat()}
    ) == TaskRecord("t", "f", TaskStatus.PENDING, created_at=NAIVE)


def test_a_one_time_task_has_a_time_of_its_own_and_no_payload():
    once = ScheduledOnce("k", "send", NAIVE, (1,), {}, None, "mail")

    assert (once.encrypted_payload, once.queue) == (None, "mail")
    assert once.created_at.tzinfo is UTC
