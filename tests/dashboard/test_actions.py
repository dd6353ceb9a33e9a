"""Actions on the dashboard with plain forms: each action happens once and is recorded."""

import html
import re
import threading

import pytest

from duly import sleep
from duly.errors import ReadTooSlow, StoreUnavailable
from tests.dashboard.conftest import client_of


def wait_for_job(client, page, end="Finished."):
    """Reload the page of a bulk action until the action is over. Return the page."""
    address = page.url.path
    for _ in range(200):
        text = client.get(address).text
        if end in text:
            return text
        threading.Event().wait(0.02)
    raise AssertionError(text)


def group_of(client, task):
    groups = re.findall(r'data-href="([^"]+)"', client.get("/dead").text)
    (address,) = [each.replace("&amp;", "&") for each in groups if task in each]
    return address


def test_a_group_is_retried_as_a_whole_and_once(busy, client):
    busy.broken = False
    address = group_of(client, "charge")
    query = address.partition("?")[2]

    asked = client.submit(f"/dead/confirm?{query}", verb="retry", scope="group")
    assert "Retry 12 dead letters?" in asked.text
    fields = {"verb": "retry", "scope": "group", "reason": "the bank is back"}
    done = wait_for_job(client, client.submit(f"/dead/act?{query}", **fields))
    again = wait_for_job(client, client.submit(f"/dead/act?{query}", **fields))

    assert "<b>12</b> done" in done
    assert "<b>0</b> done" in again
    busy.app.worker().drain()
    assert len(busy.app.runs.list(task="shop.orders:charge", state="succeeded")) == 12
    assert "the bank is back" in client.get("/audit").text


def test_selected_dead_letters_are_discarded_with_a_reason(busy, client):
    ids = [run.id for run in busy.app.dead.list(task="shop.orders:charge")[:2]]

    refused = client.submit("/dead/act", verb="discard", id=ids)
    done = wait_for_job(
        client, client.submit("/dead/act", verb="discard", id=ids, reason="test data")
    )

    assert refused.status_code == 409
    assert "<b>2</b> done" in done
    assert [busy.app.runs.get(run_id).cause for run_id in ids] == ["discarded"] * 2
    assert client.get("/audit").text.count("test data") == 3, (
        "one entry for the group, and one for each run"
    )


def test_an_action_on_an_empty_selection_is_refused(busy, client):
    query = group_of(client, "charge").partition("?")[2]

    for path in (f"/dead/confirm?{query}", f"/dead/act?{query}", "/dead/confirm"):
        answer = client.submit(path, verb="discard", reason="all of them")

        assert answer.status_code == 409
        assert "nothing was selected" in answer.text
    assert len(busy.app.dead.list(task="shop.orders:charge")) == 12


def test_a_group_contains_only_runs_of_the_chosen_window(busy, client):
    group = busy.app.dead.groups(task="shop.orders:charge")[0]
    for window, answer in (("1h", 200), ("nonsense", 200)):
        address = f"/dead/group?task={group.task}&fingerprint={group.fingerprint}&window={window}"
        assert client.get(address).status_code == answer
    assert "window=1h" in client.get("/dead?window=1h").text
    assert "from the last 1h" in client.get(f"{address.partition('&window')[0]}&window=1h").text


def ticket_of(page):
    return re.search(r'name="ticket" value="([^"]+)"', page.text)[1]


def without_ages(page: str) -> str:
    """Return a page without its ages, because they change during a test."""
    return re.sub(r"data-ago>[^<]*<", "data-ago><", page)


def test_all_runs_that_match_a_filter_are_retried_once(busy, client):
    busy.broken = False
    chosen = {"verb": "retry", "scope": "matching", "q": "task:shop.orders:charge error:bank"}

    asked = client.submit("/dead/confirm", **chosen)
    form = chosen | {"ticket": ticket_of(asked), "reason": "the bank is back"}
    done = wait_for_job(client, client.submit("/dead/act", **form))
    busy.app.worker().drain()
    again = wait_for_job(client, client.submit("/dead/act", **form))

    assert "Retry 12 runs?" in asked.text
    assert "failed or interrupted" in asked.text
    assert "<b>12</b> done, <b>0</b> skipped" in done
    assert without_ages(again) == without_ages(done), "a form that is sent twice starts one action"
    runs = busy.app.runs.list(task="shop.orders:charge", state="succeeded")
    assert {run.record.generation for run in runs} == {2}
    assert len(runs) == 12


def test_all_runs_that_match_a_filter_are_cancelled(busy, client):
    chosen = {"verb": "cancel", "scope": "matching", "q": "queue:mail"}

    asked = client.submit("/dead/confirm", **chosen)
    done = wait_for_job(client, client.submit("/dead/act", **chosen))

    assert "Cancel 1 run?" in asked.text
    assert "<b>1</b> done" in done
    assert busy.app.runs.list(queue="mail", state="queued") == []


def test_an_invalid_filter_acts_on_no_run(busy, client):
    wrong = {"q": "colour:red"}, {"q": "state:running"}, {"q": "state:failed", "verb": "discard"}
    for fields in wrong:
        answer = client.submit("/dead/act", **{"verb": "retry", "scope": "matching", **fields})

        assert answer.status_code == 409, fields
    assert len(busy.app.dead.list()) == 13


def test_the_runs_of_an_action_are_counted_up_to_a_cap(shop, client, monkeypatch):
    monkeypatch.setattr("duly.dashboard.application_view.COUNT_CAP", 250)
    monkeypatch.setattr("duly.dashboard.formats.COUNT_CAP", 250)
    monkeypatch.setattr("duly.dashboard.bulk_actions.COUNT_CAP", 250)
    shop.app.enqueue_many(shop.nothing.call(number) for number in range(450))

    asked = client.submit("/dead/confirm", verb="cancel", scope="matching", q="queue:reports")

    assert "Cancel 250+ runs?" in asked.text


def test_an_action_in_progress_does_not_start_twice(busy, client, monkeypatch):
    go, bulk = threading.Event(), type(busy.app.bulk)
    advance = bulk.advance

    def slow(*given):
        go.wait(10)
        return advance(*given)

    monkeypatch.setattr(bulk, "advance", slow)
    form = {"verb": "retry", "scope": "matching", "q": "task:shop.orders:charge"}

    first, second = (client.submit("/dead/act", **form) for _ in range(2))
    other = client.submit("/dead/act", **form | {"q": "task:shop.orders:fulfil"})
    go.set()

    assert first.url.path == second.url.path != other.url.path
    assert "<b>12</b> done" in wait_for_job(client, first)
    assert "<b>1</b> done" in wait_for_job(client, other)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bulk_action_that_raises_is_reported_as_failed(busy, client, monkeypatch):
    def advance(*_args, **_options):
        raise RuntimeError("the disk is gone")

    monkeypatch.setattr(type(busy.app.bulk), "advance", advance)
    run = busy.app.dead.list()[0]

    page = client.submit("/dead/act", verb="retry", id=run.id)

    text = wait_for_job(client, page, "Failed.")
    assert "RuntimeError: the disk is gone" in text
    assert "Finished." not in text


def test_a_bulk_action_whose_search_takes_too_long_fails(busy, client, monkeypatch):
    def too_slow(*_given):
        raise ReadTooSlow

    monkeypatch.setattr(type(busy.app.bulk), "advance", too_slow)
    run = busy.app.dead.list()[0]

    text = wait_for_job(client, client.submit("/dead/act", verb="retry", id=run.id), "Failed.")

    assert str(ReadTooSlow()) in html.unescape(text)


def test_a_bulk_action_waits_for_an_unavailable_database(busy, client, monkeypatch):
    monkeypatch.setattr("duly.dashboard.bulk_executor.BULK_PAUSE_SECONDS", 0.01)
    bulk, tries = type(busy.app.bulk), []
    advance = bulk.advance

    def fail_at_first(*given):
        tries.append(given)
        if len(tries) < 3:
            raise StoreUnavailable("the database is away")
        return advance(*given)

    monkeypatch.setattr(bulk, "advance", fail_at_first)
    run = busy.app.dead.list()[0]

    text = wait_for_job(client, client.submit("/dead/act", verb="retry", id=run.id))

    assert "<b>1</b> done" in text
    assert len(tries) == 3


def test_a_waiting_run_is_rescheduled_by_a_named_operator(shop):
    client = client_of(shop.app, write=True, auth=lambda _request: "ann")
    run = shop.nothing.using(delay=3600).enqueue()

    fields = {"at": "2090-01-31T08:00", "priority": "-3", "queue": "mail", "reason": "a flood"}
    answer = client.submit(f"/runs/{run.id}/reschedule", start="at", **fields)

    record = run.refresh().record
    assert answer.url.path == f"/runs/{run.id}"
    assert (record.queue, record.priority) == ("mail", -3)
    assert "reschedule to 2090-01-31 08:00:00 UTC, priority -3, queue mail by ann" in answer.text
    assert "a flood" in answer.text


@pytest.mark.parametrize(("start", "seconds"), [("0", 0), ("5m", 300), ("1d", 86_400)])
def test_a_waiting_run_starts_now_or_after_a_while(shop, client, start, seconds):
    run = shop.nothing.using(delay=3600).enqueue()
    before = shop.app.store.now()

    client.submit(f"/runs/{run.id}/reschedule", start=start)

    due_at = run.refresh().record.due_at
    assert before <= due_at - seconds * 1_000_000 <= shop.app.store.now()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "nothing would change: choose a start, a priority or a queue"),
        ({"start": "at"}, "the time must be a date and a time"),
        ({"start": "0", "at": "2090-01-31T08:00"}, "or leave the time empty"),
        ({"start": "soon"}, "is not a duration"),
        ({"priority": "high"}, "a priority must be a whole number"),
        ({"priority": "9" * 11}, "priority must be a whole number within"),
        ({"queue": "mail"}, "queue &#39;mail&#39; is full"),
    ],
)
def test_a_reschedule_that_cannot_be_kept_says_why_and_keeps_what_was_typed(
    shop, client, fields, words
):
    shop.app.queues.limit("mail", max_size=1)
    shop.send_receipt.enqueue(1, "a@b.c")
    run = shop.nothing.enqueue()
    before = run.record

    answer = client.submit(f"/runs/{run.id}/reschedule", reason="a <flood>", **fields)

    assert answer.status_code == 422
    assert words in answer.text
    assert 'value="a &lt;flood&gt;"' in answer.text
    assert all(f'value="{value}"' in answer.text for value in fields.values() if value != "soon")
    assert run.refresh().record == before


def test_a_run_that_cannot_be_rescheduled_has_no_link_and_no_form(shop, client):
    with shop.app.worker():
        run = shop.nightly.enqueue()
        assert shop.started.wait(10)
        page = client.get(f"/runs/{run.id}").text
        form = client.get(f"/runs/{run.id}/reschedule").text
        answer = client.submit(f"/runs/{run.id}/reschedule", start="0")
        shop.released.set()

    assert "Reschedule" not in page
    assert "it is running" in form
    assert '<form class="card' not in form
    assert answer.status_code == 409
    assert "it is running" in answer.text


def test_a_run_that_waits_in_a_step_shows_why_it_is_not_rescheduled(shop, client):
    @shop.app.task(name="shop.orders:dry")
    def dry() -> None:
        sleep("let-it-dry", 3600)

    run = dry.enqueue()
    shop.app.worker().drain()

    assert "Reschedule" not in client.get(f"/runs/{run.id}").text
    assert "it waits in step" in client.get(f"/runs/{run.id}/reschedule").text


def test_edited_arguments_are_checked_against_the_signature(busy, client):
    run = busy.app.dead.list(task="shop.orders:charge")[0]
    form = client.get(f"/runs/{run.id}/edit").text
    assert "order_id" in form

    wrong = client.submit(f"/runs/{run.id}/edit", arguments='{"kwargs": {"order": 1}}')
    worse = client.submit(f"/runs/{run.id}/edit", arguments="{")
    assert wrong.status_code == worse.status_code == 422
    assert "order" in wrong.text
    assert "not JSON" in worse.text
    busy.broken = False
    client.submit(f"/runs/{run.id}/edit", arguments='{"kwargs": {"order_id": 5, "cents": 7}}')

    busy.app.worker().drain()
    assert busy.app.runs.get(run.id).result(1) == 7


def test_edited_arguments_are_checked_against_the_annotations(busy, client):
    run = busy.app.dead.list(task="shop.orders:charge")[0]

    form = client.submit(f"/runs/{run.id}/edit", arguments='{"kwargs": {"order_id": "five"}}')

    assert form.status_code == 422
    assert "order_id: must be int, not str" in form.text
    assert "five" in form.text, "the edited text stays in the form"
    assert busy.app.runs.get(run.id).state == "failed"


def test_partly_redacted_arguments_cannot_be_edited(busy, client):
    run = busy.app.runs.list(task="shop.mail:send_receipt", state="succeeded")[-1]

    assert "cannot be edited" in client.get(f"/runs/{run.id}/edit").text
    answer = client.submit(f"/runs/{run.id}/edit", arguments='{"kwargs": {}}')
    assert answer.status_code == 422


def test_arguments_with_secret_names_cannot_be_edited(shop, client):
    @shop.app.task(name="shop.login:open", retries=0)
    def open_session(options: dict[str, str]) -> None:
        raise ValueError("no")

    run = open_session.enqueue({"api_key": "hunter2"})
    shop.app.worker().drain()

    form = client.get(f"/runs/{run.id}/edit").text
    given = '{"kwargs": {"options": {"api_key": "***"}}}'
    answer = client.submit(f"/runs/{run.id}/edit", arguments=given)

    assert "cannot be edited" in form
    assert answer.status_code == 422
    assert shop.app.runs.get(run.id).record.generation == 1


def test_a_run_that_is_retried_from_a_step_keeps_the_earlier_steps(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    busy.broken = False
    assert busy.packed == 1

    client.submit(f"/runs/{run.id}/retry", from_step="gather")
    busy.app.worker().drain()

    assert busy.app.runs.get(run.id).result(1)["shelf"] == "shelf 7"
    assert busy.packed == 1, "the earlier step was not repeated"
    assert "retry from step gather" in client.get(f"/runs/{run.id}").text


def test_a_retry_from_the_first_step_repeats_all_steps(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    busy.broken = False

    client.submit(f"/runs/{run.id}/retry", from_step="reserve-stock")
    busy.app.worker().drain()

    assert busy.packed == 2
    wrong = client.submit(f"/runs/{run.id}/retry", from_step="no-such-step")
    assert wrong.status_code == 409


def test_a_running_run_is_cancelled_by_a_named_actor(shop):
    client = client_of(shop.app, write=True, auth=lambda _request: "ann")
    with shop.app.worker():
        run = shop.nightly.enqueue()
        assert shop.started.wait(10)

        client.submit(f"/runs/{run.id}/cancel")
        page = client.get(f"/runs/{run.id}").text
        shop.released.set()

    assert "cancelling" in page
    assert "by <b>ann</b>" in page


def test_queue_and_schedule_actions_take_effect(busy, client):
    client.submit("/queues/mail/pause")
    client.submit("/schedules/poll-the-bank/resume")
    ran = client.submit("/schedules/nightly-report/run")
    client.submit("/schedules/nightly-report/pause", reason="holidays")

    paused = {queue.name for queue in busy.app.queues.list() if queue.paused}
    assert "mail" in paused
    assert busy.app.schedules.get("poll-the-bank").state == "active"
    assert busy.app.schedules.get("nightly-report").reason == "holidays"
    assert "/runs/" in str(ran.url)
    filled = client.submit(
        "/schedules/half-hourly-sync/backfill",
        **{"from": "2026-01-01T00:00", "to": "2026-01-01T01:30"},
    )
    assert filled.status_code == 200
    assert client.submit("/schedules/x/run").status_code == 404
    wrong = client.submit("/schedules/half-hourly-sync/backfill", **{"from": "x", "to": "y"})
    assert wrong.status_code == 409
    assert client.submit("/queues/mail/explode").status_code == 404


def test_a_limited_queue_shows_the_used_part_of_its_limit(busy, client):
    client.submit("/queues/mail/limit", limit="4")
    limited = client.get("/queues").text
    wrong = [client.submit("/queues/mail/limit", limit=text) for text in ("0", "-1", "many")]
    before = [queue.limit for queue in busy.app.queues.list() if queue.name == "mail"]
    client.submit("/queues/mail/limit", limit="")

    assert 'value="4"' in limited
    assert ">0 %<" in limited
    assert [answer.status_code for answer in wrong] == [409] * 3
    assert before == [4]
    assert [queue.limit for queue in busy.app.queues.list() if queue.name == "mail"] == [None]


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize(
    ("error", "said", "unsaid"),
    [
        (StoreUnavailable("what became of it is not known yet"), "check before you", "Reload"),
        (ReadTooSlow(), "Reload to try again.", "check before you"),
    ],
)
def test_an_error_page_does_not_suggest_repeating_an_action_that_may_have_succeeded(
    busy, client, monkeypatch, error, said, unsaid
):
    def run_now(name, *, actor, reason):
        raise error

    monkeypatch.setattr(busy.app.schedules, "run_now", run_now)

    page = client.submit("/schedules/nightly-report/run")

    assert page.status_code == 503
    assert said in page.text
    assert unsaid not in page.text


def test_a_run_whose_key_belongs_to_a_live_run_is_not_retried(busy, client):
    busy.app.worker().drain()
    keyed = busy.charge.using(key="k", unique="active")
    first = keyed.enqueue(1)
    busy.app.worker().drain()
    second = keyed.enqueue(1)
    words = f"run {first.id} cannot be retried while another run has its key: run {second.id}"

    one = client.submit(f"/runs/{first.id}/retry")
    many = wait_for_job(client, client.submit("/dead/act", verb="retry", id=first.id))

    assert words in one.text
    assert "<b>0</b> done, <b>1</b> skipped" in many
    assert words in many
