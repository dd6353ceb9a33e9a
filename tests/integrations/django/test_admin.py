"""Django's admin: its pages about runs and schedules, and its actions on them."""

import pytest
from django.core.management import call_command
from django.test import Client, override_settings
from django.urls import reverse

from duly.integrations.django import scheduled_task
from duly.integrations.django.testing import drain
from tests.integrations.django import other, tasks
from tests.integrations.django.test_code_schedules import first_run
from tests.servers.processes import wait_until

SOON = 20.0
CANARY = "canary-7f3a91"
UNMIGRATED = dict.fromkeys(("admin", "auth", "contenttypes"))
"""Django's own tables, made directly instead of by their full migration history."""


@pytest.fixture
def backend(backend):
    """Return the backend, with the tables that Django's own admin needs."""
    with override_settings(MIGRATION_MODULES=UNMIGRATED):
        call_command("migrate", run_syncdb=True, verbosity=0)
    return backend


def logged_in(*permissions: str) -> Client:
    from django.contrib.auth.models import Permission, User  # noqa: PLC0415 - needs settings

    user = User.objects.create_user("ada", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def operator(backend):
    """Return a client of a user with all permissions on runs and schedules."""
    models = ("run", "deadletter", "execution", "schedule")
    allowed = [f"{act}_{model}" for act in ("view", "change") for model in models]
    return logged_in(*allowed, "add_schedule", "delete_schedule")


def page(client: Client, name: str, *args: object, **query: str) -> str:
    answer = client.get(reverse(f"admin:duly_{name}", args=args), query)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def act(client: Client, model: str, action: str, *keys: str) -> str:
    url = reverse(f"admin:duly_{model}_changelist")
    data = {"action": action, "_selected_action": keys}
    return client.post(url, data, follow=True).content.decode()


def test_runs_are_listed_and_shown(operator):
    good, bad = tasks.add.enqueue(41), tasks.divide.enqueue(1, 0)
    drain()
    listed = page(operator, "run_changelist")
    assert good.id in listed
    assert "number=1" in listed or "1, 0" in listed
    only = page(operator, "run_changelist", state__exact="failed", queue="default")
    assert bad.id in only
    assert good.id not in only
    assert good.id in page(operator, "run_changelist", task=tasks.add.module_path)
    shown = page(operator, "run_change", bad.id)
    assert "ZeroDivisionError" in shown
    assert "_save" not in shown
    assert good.id in page(operator, "run_changelist", q=good.id)
    assert good.id not in page(operator, "run_changelist", q="nosuch")


@pytest.mark.parametrize("wrong", ["nosuch", "0" * 32, "'"])
def test_the_page_of_a_missing_run_says_that_it_does_not_exist(operator, wrong):
    answer = operator.get(reverse("admin:duly_run_change", args=[wrong]), follow=True)
    assert "exist" in answer.content.decode()


def test_text_of_users_is_escaped(operator):
    result = tasks.say.enqueue("<script>alert(1)</script>")
    for name, args in (("run_changelist", ()), ("run_change", (result.id,))):
        shown = page(operator, name, *args)
        assert "<script>alert" not in shown
        assert "&lt;script&gt;" in shown


def test_secret_arguments_are_not_shown(operator):
    result = tasks.log_in.enqueue("ada", password="hunter2")  # noqa: S106 - an example
    assert "hunter2" not in page(operator, "run_changelist")
    assert "hunter2" not in page(operator, "run_change", result.id)


def test_no_page_of_the_admin_shows_redacted_values(operator):
    nested = {"card": CANARY, "logins": [{"password": CANARY}]}
    good, bad = (tasks.pay.enqueue(CANARY, nested, fails=fails) for fails in (False, True))
    drain()

    pages = [page(operator, f"{model}_changelist") for model in ("run", "deadletter")]
    pages += [page(operator, "run_change", result.id) for result in (good, bad)]

    assert all("harmless" in shown for shown in pages[1:]), "values that are not secret are shown"
    assert not any(CANARY in shown for shown in pages)


def test_dead_letters_are_retried_and_cancelled(operator, backend):
    first, second = tasks.divide.enqueue(1, 0), tasks.divide.enqueue(2, 0)
    tasks.add.enqueue(1)
    drain()
    listed = page(operator, "deadletter_changelist")
    assert first.id in listed
    assert second.id in listed
    assert listed.count("tests.integrations.django.tasks.add<") <= 1  # Matches only in the filter.
    assert "1 queued again" in act(operator, "deadletter", "retry", first.id)
    assert "1 cancelled" in act(operator, "deadletter", "discard", second.id)
    states = [backend.app.runs.get(result.id).state for result in (first, second)]
    assert states == ["queued", "cancelled"]
    acts = backend.app.store.list_audit_entries(first.id, 5)
    assert [done.actor for done in acts] == ["ada"]


def test_queued_runs_are_cancelled_and_ended_runs_are_unchanged(operator, backend):
    ended = tasks.add.enqueue(1)
    drain()
    waiting = tasks.add.enqueue(2)
    said = act(operator, "run", "cancel", ended.id, waiting.id)
    assert "1 cancelled" in said
    assert "1 not changed" in said
    assert backend.app.runs.get(waiting.id).state == "cancelled"
    assert backend.app.runs.get(ended.id).state == "succeeded"


def test_a_user_with_view_permissions_can_change_nothing(backend):
    client = logged_in("view_run", "view_schedule")
    result = tasks.add.enqueue(1)
    assert result.id in page(client, "run_changelist")
    act(client, "run", "cancel", result.id)
    assert backend.app.runs.get(result.id).state == "queued"
    assert client.get(reverse("admin:duly_schedule_add")).status_code == 403
    assert client.get(reverse("admin:duly_deadletter_changelist")).status_code == 403


NIGHTLY = {
    "name": "nightly",
    "task": "tests.integrations.django.tasks.add",
    "cron": "0 2 * * *",
    "timezone": "Europe/Paris",
    "args": "[41]",
    "kwargs": '{"other": 1}',
    "queue_name": "",
    "priority": "",
    "misfire": "latest",
    "overlap": "skip",
}


def test_workers_fire_a_schedule_that_was_made_in_the_admin(operator, backend):
    every_second = NIGHTLY | {"cron": "* * * * * *", "queue_name": "mail"}
    answer = operator.post(reverse("admin:duly_schedule_add"), every_second)
    assert answer.status_code == 302, answer.content.decode()
    with backend.app.worker():
        assert first_run(backend).result(timeout=SOON) == 42
    assert first_run(backend).record.queue == "mail"
    assert "nightly" in page(operator, "execution_changelist")
    shown = page(operator, "schedule_change", "nightly")
    assert first_run(backend).id in shown


@pytest.mark.stores("sqlite-wal")
def test_the_form_of_a_new_schedule_has_the_defaults_of_code_schedules(operator):
    shown = page(operator, "schedule_add")

    assert '<option value="latest">' in shown  # The first task is selected.
    assert '<option value="allow" selected>' in shown


@pytest.mark.stores("sqlite-wal")
def test_a_form_that_is_saved_unchanged_keeps_the_seconds_of_a_schedule(operator, backend):
    often = NIGHTLY | {"cron": "* * * * * */20"}
    operator.post(reverse("admin:duly_schedule_add"), often)
    shown = page(operator, "schedule_change", "nightly")

    operator.post(reverse("admin:duly_schedule_change", args=["nightly"]), often)

    assert 'value="* * * * * */20"' in shown
    assert {instant.second for instant in backend.app.schedules.next("nightly", 6)} == {0, 20, 40}


def test_a_schedule_of_the_admin_is_changed_and_removed(operator, backend):
    operator.post(reverse("admin:duly_schedule_add"), NIGHTLY)
    change = reverse("admin:duly_schedule_change", args=["nightly"])
    assert "Europe/Paris" in page(operator, "schedule_change", "nightly")
    answer = operator.post(change, NIGHTLY | {"cron": "0 3 * * *"})
    assert answer.status_code == 302, answer.content.decode()
    schedule = backend.app.schedules.get("nightly")
    assert (schedule.cron, schedule.place) == ("0 3 * * *", "ada")
    assert (
        operator.post(
            reverse("admin:duly_schedule_delete", args=["nightly"]), {"post": "yes"}
        ).status_code
        == 302
    )
    assert backend.app.schedules.list() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "every day"},
        {"timezone": "Europe/Atlantis"},
        {"args": "[1, 2, 3]"},
        {"args": '{"number": 1}'},
        {"task": "os.system"},
        {"name": ""},
        {"name": "from-code"},
        {"queue_name": "--drain"},
    ],
    ids=lambda wrong: "-".join(wrong) + "=" + "".join(wrong.values()),
)
@pytest.mark.stores("sqlite-wal")
def test_an_invalid_schedule_is_explained_in_the_form_and_not_saved(operator, backend, wrong):
    scheduled_task(cron="0 2 * * *", name="from-code", args=[1])(tasks.add)
    backend.app.schedules.sync()
    answer = operator.post(reverse("admin:duly_schedule_add"), NIGHTLY | wrong)
    assert answer.status_code == 200
    assert "errorlist" in answer.content.decode()
    assert [found.name for found in backend.app.schedules.list()] == ["from-code"]


def test_a_code_schedule_can_be_paused_and_run_but_not_edited(operator, backend):
    scheduled_task(cron="0 2 * * *", name="from-code", args=[41])(tasks.add)
    backend.app.schedules.sync()
    assert "_save" not in page(operator, "schedule_change", "from-code")
    delete = reverse("admin:duly_schedule_delete", args=["from-code"])
    assert operator.post(delete, {"post": "yes"}).status_code == 403
    many = {"action": "delete_selected", "_selected_action": ["from-code"], "post": "yes"}
    operator.post(reverse("admin:duly_schedule_changelist"), many)
    assert backend.app.schedules.get("from-code").state == "active"
    assert "1 disabled" in act(operator, "schedule", "disable", "from-code")
    backend.app.schedules.sync()  # As the next deployment does.
    assert backend.app.schedules.get("from-code").state == "paused"
    assert "1 run" in act(operator, "schedule", "run_now", "from-code")
    assert drain() == 1
    assert "1 enabled" in act(operator, "schedule", "enable", "from-code")
    assert backend.app.schedules.get("from-code").state == "active"


def test_an_admin_schedule_sends_a_task_of_another_backend_to_that_backend(operator, scheduler):
    yearly = NIGHTLY | {
        "task": "tests.integrations.django.tasks.remind@other",
        "cron": "0 0 1 1 *",
        "args": "[7]",
        "kwargs": "{}",
    }
    answer = operator.post(reverse("admin:duly_schedule_add"), yearly)
    assert answer.status_code == 302, answer.content.decode()
    with scheduler.worker():
        assert "1 run" in act(operator, "schedule", "run_now", "nightly")
        wait_until(lambda: bool(other.waiting), seconds=SOON, what="the run is handed over")

    delivered = [other.deliver(other.waiting[0]) for _ in range(2)]

    assert delivered == ["reminded 7", None]


@pytest.mark.stores("sqlite-wal")
def test_only_duly_writes_the_rows(backend):
    from duly.integrations.django.models import Run, Schedule  # noqa: PLC0415 - needs settings

    result = tasks.add.enqueue(1)
    with pytest.raises(TypeError, match="cannot be written through this model"):
        Run.objects.get(pk=result.id).save()
    with pytest.raises(TypeError, match="cannot be written through this model"):
        Schedule.objects.all().delete()
