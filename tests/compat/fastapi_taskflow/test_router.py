"""The routes: JSON in the form of fastapi-taskflow, and the permissions of each request."""

import asyncio
import base64
import re
import threading

import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient

from duly import BadOption, current
from duly.compat.fastapi_taskflow import (
    QueueConfig,
    TaskAdmin,
    TaskAuthBackend,
    operations,
    task_log,
)
from duly.limits import LOGIN_FAILURES
from tests.compat.fastapi_taskflow.conftest import adding
from tests.integrations.exchanges import Asgi
from tests.servers.processes import wait_until

SOON = 20.0
FIELDS = {
    "task_id",
    "func_name",
    "status",
    "created_at",
    "start_time",
    "end_time",
    "duration",
    "retries_used",
    "error",
    "logs",
    "stacktrace",
    "tags",
    "source",
    "priority",
    "executor",
    "queue",
}
"""The keys of TaskRecord.to_dict() in fastapi-taskflow."""


def client_of(manager, **options) -> TestClient:
    """Return a client of an application that serves the manager's routes."""
    app = FastAPI()
    TaskAdmin(app, manager, **options)
    return TestClient(app, base_url="http://localhost")


def define(manager):
    """Make a task that fails while the test wants it to."""
    fails = threading.Event()

    @manager.task(name="send", queue="mail")
    def send(address: str) -> None:
        task_log("sending")
        if fails.is_set():
            raise ValueError("no such address")

    return send, fails


@pytest.fixture
def manager(manager_of):
    return manager_of(queues={"mail": QueueConfig(concurrency=2)}, requeue_pending=True)


def ends(client: TestClient, task_id: str, status: str) -> dict:
    """Wait until a task ends, and return it."""
    wait_until(
        lambda: client.get(f"/tasks/{task_id}").json()["status"] == status,
        seconds=SOON,
        what=f"{task_id} is {status}",
    )
    return client.get(f"/tasks/{task_id}").json()


def test_a_task_is_shown_with_its_log_lines_and_without_arguments(manager):
    send, fails = define(manager)
    fails.set()
    with client_of(manager) as client:
        task_id = adding(manager).add_task(send, "a@b.c", tags={"tenant": "a"}, priority=2)
        shown = ends(client, task_id, "failed")
        assert client.get("/tasks/nobody").status_code == 404
        document = client.get("/openapi.json").json()
    assert set(shown) == FIELDS | {"cause"}
    assert (shown["func_name"], shown["queue"], shown["executor"]) == ("send", "mail", "thread")
    assert (shown["tags"], shown["priority"], shown["source"]) == ({"tenant": "a"}, 2, "manual")
    assert shown["error"] == "ValueError: no such address"
    assert "raise ValueError" in shown["stacktrace"]
    assert shown["logs"][0].endswith("sending")
    assert shown["duration"] >= 0
    assert "a@b.c" not in str({**shown, "stacktrace": ""})
    assert {"/tasks", "/tasks/{task_id}/retry", "/tasks/queues/{queue_name}"} <= set(
        document["paths"]
    )


@pytest.mark.stores("sqlite-wal")
def test_arguments_are_shown_if_configured(manager):
    send, _ = define(manager)
    with client_of(manager, display_func_args=True) as client:
        task_id = adding(manager).add_task(send, "a@b.c")
        assert client.get(f"/tasks/{task_id}").json()["arguments"] == 'address="a@b.c"'
        assert client.get("/tasks").json()[0]["arguments"] == 'address="a@b.c"'


def test_tasks_are_listed_by_page_and_filter(manager):
    """The size of a page does not depend on the history."""
    send, fails = define(manager)

    @manager.task(name="other")
    def other() -> None: ...

    with client_of(manager) as client:
        ids = [adding(manager).add_task(send, "a@b.c", tags={"n": str(n)}) for n in range(5)]
        for task_id in ids:
            ends(client, task_id, "success")
        fails.set()
        failed = adding(manager).add_task(send, "x")
        ends(client, failed, "failed")
        ends(client, one := adding(manager).add_task(other), "success")

        def listed(**query) -> list[str]:
            return [task["task_id"] for task in client.get("/tasks", params=query).json()]

        first = client.get("/tasks", params={"limit": 4})
        rest = client.get("/tasks", params={"limit": 4, "cursor": first.headers["X-Next-Cursor"]})
        assert [task["task_id"] for task in first.json() + rest.json()] == [
            one,
            failed,
            *reversed(ids),
        ]
        assert "X-Next-Cursor" not in rest.headers
        assert listed(status="failed") == [failed]
        assert listed(func_name="other") == [one]
        assert listed(func_name="nothing") == []
        assert listed(tag="n=3") == [ids[3]]
        assert listed(queue="default") == [one]
        assert len(listed(since="1h")) == len(listed(since="999999d")) == 7
        assert listed(status="rejected") == []
        assert client.get("/tasks", params={"since": "soon"}).status_code == 400
        assert client.get("/tasks", params={"limit": 1000}).status_code == 422
        metrics = client.get("/tasks/metrics").json()
        queues = {queue["name"]: queue for queue in client.get("/tasks/queues").json()}
    assert (metrics["total"], metrics["success"], metrics["failed"]) == (7, 6, 1)
    assert metrics["success_rate"] == pytest.approx(6 / 7)
    assert metrics["avg_duration_seconds"] >= 0
    assert (queues["mail"]["finished"], queues["mail"]["concurrency"]) == (6, 2)


def test_a_retry_keeps_the_id_and_the_previous_record(manager):
    """The previous record is not deleted, and all failed tasks can be retried at once."""
    send, fails = define(manager)
    fails.set()
    with client_of(manager) as client:
        ids = [adding(manager).add_task(send, "a@b.c") for _ in range(3)]
        for task_id in ids:
            ends(client, task_id, "failed")
        fails.clear()
        answer = client.post(f"/tasks/{ids[0]}/retry").json()
        assert answer["task_id"] == answer["task"]["task_id"] == ids[0]
        ends(client, ids[0], "success")
        again = client.post(f"/tasks/{ids[0]}/retry")
        bulk = client.post("/tasks/bulk-retry", json={"task_ids": [ids[1], ids[0], "nobody"]})
        late = client.post("/tasks/retry-failed", params={"since": "6h", "func_name": "send"})
        for task_id in ids:
            ends(client, task_id, "success")
        audit = client.get("/tasks/audit").json()
        assert client.post("/tasks/retry-failed", params={"since": "x"}).status_code == 400
        assert client.post("/tasks/nobody/retry").status_code == 404
    assert (again.status_code, "success" in again.json()["detail"]) == (400, True)
    assert bulk.json() == {
        "dispatched": 1,
        "skipped": 2,
        "results": [{"original_task_id": ids[1], "new_task_id": ids[1]}],
    }
    assert late.json()["results"] == [{"original_task_id": ids[2], "new_task_id": ids[2]}]
    outcomes = [attempt.outcome for attempt in manager.duly.runs.get(ids[0]).attempts()]
    assert outcomes == ["raised", "returned"]
    assert [entry["task_id"] for entry in audit] == [ids[2], ids[1], ids[0]]
    assert {(entry["action"], entry["actor"]) for entry in audit} == {("retry", "anonymous")}
    assert set(audit[0]) == {"entry_id", "action", "task_id", "actor", "timestamp", "detail"}


def test_a_cancelled_pending_task_never_runs_and_a_running_one_is_stopped(manager):
    """This also holds for a task on a thread."""
    ran, begun = [], threading.Event()

    @manager.task(name="never", queue="mail")
    def never() -> None:
        ran.append(1)

    @manager.task(name="endless")
    def endless() -> None:
        begun.set()
        while True:
            current().check_cancelled()

    with client_of(manager) as client:
        manager.duly.queues.pause("mail")
        waiting, running = adding(manager).add_task(never), adding(manager).add_task(endless)
        answer = client.post(f"/tasks/{waiting}/cancel").json()
        manager.duly.queues.resume("mail")
        assert begun.wait(SOON)
        client.post(f"/tasks/{running}/cancel")
        ends(client, running, "cancelled")
        again = client.post(f"/tasks/{running}/cancel")
        assert client.post("/tasks/nobody/cancel").status_code == 404
    assert (answer["task"]["status"], ran) == ("cancelled", [])
    assert (again.status_code, again.json()["detail"][-9:]) == (400, "cancelled")


def test_changes_of_limits_and_deletions_of_history_are_audited(manager, monkeypatch):
    send, _ = define(manager)
    with client_of(manager) as client:
        changed = client.patch("/tasks/queues/mail", json={"concurrency": 5, "max_size": None})
        assert (changed.json()["concurrency"], changed.json()["max_size"]) == (5, None)
        assert client.patch("/tasks/queues/male", json={}).status_code == 404
        assert client.patch("/tasks/queues/mail", json={"concurrency": 0}).status_code == 422
        ends(client, adding(manager).add_task(send, "a@b.c"), "success")
        kept = client.delete("/tasks/history", params={"value": 1, "unit": "min"})
        assert kept.json() == {"deleted": 0, "store": 0, "backend": 0}
        assert client.delete("/tasks/history", params={"value": 1, "unit": "s"}).status_code == 400
        assert client.delete("/tasks/history", params={"unit": "min"}).status_code == 422
        assert (
            client.delete("/tasks/history", params={"value": 0, "unit": "min"}).status_code == 422
        )
        monkeypatch.setitem(operations._SECONDS, "day", 0)
        gone = client.delete("/tasks/history", params={"value": 1, "unit": "day"})
        assert gone.json() == {"deleted": 1, "store": 0, "backend": 1}
        assert client.get("/tasks").json() == []
        told = [
            (act["action"], act["task_id"], act["actor"], act["detail"])
            for act in client.get("/tasks/audit").json()
        ]
    limits = {"reason": "concurrency=5, max_size=None"}
    assert told == [
        ("delete_history", "history older than 1 day", "anonymous", {}),
        ("delete_history", "history older than 1 min", "anonymous", {}),
        ("update_queue", "queue mail", "anonymous", limits),
    ]


@pytest.mark.stores("sqlite-wal")
def test_without_auth_clients_may_read_and_change_nothing(manager):
    """The apparent origin of the request does not matter.

    Only a TestClient, in this process, may make changes.
    """
    app, open_app = FastAPI(), FastAPI()
    TaskAdmin(app, manager)
    TaskAdmin(open_app, manager, auth=lambda: "anonymous")
    acts = [
        ("POST", "/tasks/nobody/retry"),
        ("POST", "/tasks/nobody/cancel"),
        ("POST", "/tasks/bulk-retry"),
        ("POST", "/tasks/retry-failed"),
        ("PATCH", "/tasks/queues/mail"),
        ("DELETE", "/tasks/history"),
    ]
    with TestClient(app) as client:
        assert client.post("/tasks/nobody/retry").status_code == 404
        for method, path in acts:
            answer = Asgi(app).post(None, path=path, method=method, headers=[("host", "localhost")])
            assert answer.status == 403
        assert asked(app, "/tasks").status == 200
        assert Asgi(open_app).post(None, path="/tasks/nobody/retry").status == 404


@pytest.mark.stores("sqlite-wal")
def test_without_auth_clients_see_no_possible_secrets(manager):
    """Error texts, stack traces, log lines, arguments and names of operators are left out."""
    send, fails = define(manager)
    fails.set()
    app, open_app = FastAPI(), FastAPI()
    TaskAdmin(app, manager, display_func_args=True)
    TaskAdmin(open_app, manager, display_func_args=True, auth=lambda: "anonymous")
    with TestClient(app) as client:
        task_id = adding(manager).add_task(send, "canary@example.com")
        run = manager.duly.runs.get(task_id)
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="it fails")
        told = client.get(f"/tasks/{task_id}").json()
        assert "Traceback" in told["stacktrace"], "a TestClient sees everything"
        assert "canary" in str(told["arguments"])

        for path in (f"/tasks/{task_id}", "/tasks"):
            shown = asked(app, path).body.decode()
            assert '"status":"failed"' in shown
            assert "auth=" in shown, "the field says why there is no error"
            for secret in ("Traceback", told["error"], "canary", *told["logs"]):
                assert secret not in shown
            assert told["error"] in asked(open_app, path).body.decode()
        assert asked(app, "/tasks/audit").status == 403
        assert asked(open_app, "/tasks/audit").status == 200


@pytest.mark.stores("sqlite-wal")
def test_without_auth_only_known_host_names_are_answered(manager):
    """A page of another site whose name resolves to this machine cannot read anything."""
    app, named, guarded = FastAPI(), FastAPI(), FastAPI()
    TaskAdmin(app, manager)
    TaskAdmin(named, manager, hosts={"Ops.example.com"})
    TaskAdmin(guarded, manager, auth=lambda: "ann", hosts=["ops.example.com"])

    paths = ("/tasks", "/tasks/metrics", "/tasks/queues", "/tasks/nobody", "/tasks/dashboard/")
    for path in paths:
        for host in ("evil.test", "localhost.evil.test", "127.0.0.1@evil.test", ""):
            assert asked(app, path, host).status == 421, (path, host)
        assert asked(named, path, "localhost").status == 421
        assert asked(guarded, path, "localhost").status == 421
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:80"):
        assert asked(app, "/tasks", host).status == 200
    for allowed in (named, guarded):
        assert asked(allowed, "/tasks", "ops.example.com:443").status == 200
    for wrong in ("ops.example.com", [], [1]):
        with pytest.raises(BadOption, match="hosts"):
            TaskAdmin(FastAPI(), manager, hosts=wrong)


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_pages_of_other_sites_change_nothing(manager, headers):
    """A browser would send the password without asking."""
    with client_of(manager, auth=("admin", "secret of ours")) as client:
        client.auth = ("admin", "secret of ours")
        assert client.post("/tasks/nobody/retry", headers=headers).status_code == 403
        assert client.get("/tasks", headers=headers).status_code == 200
        own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert client.post("/tasks/nobody/retry", headers=own).status_code == 404


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("kind", ["pair", "pairs", "backend", "async backend"])
def test_with_auth_everything_needs_a_user(manager_of, kind):
    """There is no session, so every worker process knows the user."""

    class Backend(TaskAuthBackend):
        def authenticate_user(self, username: str, password: str) -> bool:
            return (username, password) == ("zoë", "s:cret of zoë")

    class AsyncBackend(TaskAuthBackend):
        async def authenticate_user(self, username: str, password: str) -> bool:
            return (username, password) == ("zoë", "s:cret of zoë")

    auth = {
        "async backend": AsyncBackend(),
        "pair": ("zoë", "s:cret of zoë"),
        "pairs": [("bob", "secret of bob"), ("zoë", "s:cret of zoë")],
        "backend": Backend(),
    }[kind]
    manager = manager_of()
    fails = define(manager)
    fails[1].set()
    with client_of(manager, auth=auth, title='Our "tasks"', secret_key="s") as client:  # noqa: S106
        task_id = adding(manager).add_task(fails[0], "x")
        run = manager.duly.runs.get(task_id)
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="it fails")
        for wrong in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": "Basic !!"},
            basic("zoë", "wrong"),
            basic("", ""),
        ):
            refused = client.get("/tasks", headers=wrong)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"].startswith("Basic realm=\"Our 'tasks'\"")
        right = basic("zoë", "s:cret of zoë")
        assert client.get("/tasks", headers=right).status_code == 200
        assert client.post(f"/tasks/{task_id}/retry", headers=right).status_code == 200
        assert client.get("/tasks/audit", headers=right).json()[0]["actor"] == "zoë"


@pytest.mark.stores("sqlite-wal")
def test_wrong_passwords_lock_out_only_the_address_that_sent_them(manager):
    right, wrong = basic("zoë", "s:cret of zoë"), basic("zoë", "wrong")
    with client_of(manager, auth=("zoë", "s:cret of zoë")) as client:
        guesses = [client.get("/tasks", headers=wrong).status_code for _ in range(11)]
        refused = client.get("/tasks", headers=right)
        elsewhere = TestClient(client.app, client=("10.0.0.9", 1))

        assert guesses == [401] * 10 + [429]
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        assert elsewhere.get("/tasks", headers=right).status_code == 200
        assert elsewhere.get("/tasks/dashboard/", headers=right).status_code == 200


@pytest.mark.stores("sqlite-wal")
def test_simultaneous_wrong_passwords_are_all_counted(manager):
    class Backend(TaskAuthBackend):
        calls = 0

        def authenticate_user(self, _username: str, _password: str) -> bool:
            self.calls += 1
            return False

    async def guess(number: int) -> int:
        headers = basic("zoë", f"guess {number}").items()
        answer = await Asgi(app).apost(None, path="/tasks", method="GET", headers=headers)
        return answer.status

    async def guess_at_once() -> list[int]:
        return await asyncio.gather(*map(guess, range(200)))

    backend, app = Backend(), FastAPI()
    TaskAdmin(app, manager, auth=backend)

    answers = asyncio.run(guess_at_once())

    assert set(answers) == {401, 429}
    assert backend.calls <= 2 * LOGIN_FAILURES


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("password", ["s", "secret", "x" * 40])
def test_weak_passwords_are_refused(manager, password):
    for auth in (("ann", password), [("bob", "secret of bob"), ("ann", password)]):
        with pytest.raises(BadOption, match="password of 'ann'"):
            TaskAdmin(FastAPI(), manager, auth=auth)


@pytest.mark.stores("sqlite-wal")
def test_a_custom_auth_dependency_guards_the_routes(manager):
    def token(x_token: str = Header("")) -> str:
        if x_token != "good":  # noqa: S105
            raise HTTPException(403)
        return "token"

    with client_of(manager, auth=token, path="/admin/tasks") as client:
        assert client.get("/admin/tasks").status_code == 403
        assert client.get("/admin/tasks", headers={"X-Token": "good"}).status_code == 200


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("answer", [None, "", False])
@pytest.mark.parametrize("kind", ["function", "coroutine", "function that returns a coroutine"])
def test_an_auth_dependency_that_returns_no_user_denies_access(manager, answer, kind):
    async def coroutine():
        return answer

    def plain():
        return coroutine()

    auth = {"function": lambda: answer, "coroutine": coroutine}.get(kind, plain)
    with client_of(manager, auth=auth) as client:
        assert client.get("/tasks").status_code == 403
        assert client.post("/tasks/nobody/retry").status_code == 403
        assert client.get("/tasks/dashboard/").status_code == 403


@pytest.mark.stores("sqlite-wal")
def test_impossible_options_of_the_admin_are_refused(manager):
    class Backend(TaskAuthBackend):
        def authenticate_user(self, username: str, password: str) -> bool:
            return (username, password) == ("zoë", "s:cret of zoë")

    for wrong in (1, [], ("a",), ("admin", ""), [("a", "b"), ("", "x")], Backend):
        with pytest.raises(BadOption, match="auth must"):
            TaskAdmin(FastAPI(), manager, auth=wrong)
    with pytest.raises(BadOption, match="token_expiry"):
        TaskAdmin(FastAPI(), manager, token_expiry=60)
    with pytest.raises(BadOption, match="poll_interval"):
        TaskAdmin(FastAPI(), manager, poll_interval="often")
    TaskAdmin(FastAPI(), manager, retention_days=3)
    assert manager._worker["retention"] == 3 * 86_400


@pytest.mark.stores("sqlite-wal")
def test_the_dashboard_is_served_to_authorized_users(manager):
    define(manager)
    ann = ("ann", "secret of ann")
    client = client_of(manager, auth=ann, display_func_args=True, poll_interval=5.0)

    assert client.get("/tasks/dashboard").status_code == 401
    client.auth = ann
    page = client.get("/tasks/dashboard")
    assert page.status_code == 200
    assert "/tasks/dashboard/static/dashboard.css" in page.text
    assert client.get("/tasks/dashboard/static/dashboard.css").status_code == 200
    assert "can act" in client.get("/tasks/dashboard/runs").text
    form = {"csrf": client.cookies["duly_csrf"], "reason": "full"}
    client.post("/tasks/dashboard/queues/mail/pause", data=form)
    (act,) = manager.duly.store.list_audit_entries(None, 5)
    assert (act.actor, act.act) == ("ann", "pause")


@pytest.mark.stores("sqlite-wal")
def test_without_auth_the_dashboard_is_for_this_machine_and_read_only(manager):
    app = FastAPI()
    TaskAdmin(app, manager)
    here = TestClient(app, base_url="http://localhost")
    elsewhere = TestClient(app, base_url="http://localhost", client=("10.0.0.9", 1))

    assert "read-only" in here.get("/tasks/dashboard/").text
    assert elsewhere.get("/tasks/dashboard/").status_code == 403


@pytest.mark.stores("sqlite-wal")
def test_without_auth_a_logged_link_opens_the_dashboard(manager, caplog):
    app = FastAPI()
    TaskAdmin(app, manager)
    browser = TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1))

    browser.get("/tasks/dashboard/runs", headers={"Accept": "text/html"})
    (token,) = re.findall(r"http://localhost/tasks/dashboard/login#([0-9a-f]{64})", caplog.text)
    form = {"csrf": browser.cookies["duly_csrf"], "token": token}

    assert browser.get("/tasks/dashboard/runs").status_code == 401
    assert browser.post("/tasks/dashboard/login", data=form).status_code == 200
    assert "read-only" in browser.get("/tasks/dashboard/runs").text


def asked(app, path, host="localhost"):
    """Send a request as a client of a server does, without the extensions of TestClient."""
    return Asgi(app).post(None, path=path, method="GET", headers=[("host", host)])


def basic(user: str, password: str) -> dict[str, str]:
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def test_a_task_whose_function_is_gone_cannot_be_retried_in_this_process(manager, manager_of):
    """fastapi-taskflow answers 409: this process has no function to run."""
    send, fails = define(manager)
    fails.set()
    with client_of(manager) as client:
        task_id = adding(manager).add_task(send, "a@b.c")
        ends(client, task_id, "failed")

    with client_of(manager_of()) as client:
        answer = client.post(f"/tasks/{task_id}/retry")
        bulk = client.post("/tasks/bulk-retry", json={"task_ids": [task_id]})

        assert answer.status_code == 409
        assert "'send' is unknown here" in answer.json()["detail"]
        assert (bulk.json()["dispatched"], bulk.json()["skipped"]) == (0, 1)
        assert client.get(f"/tasks/{task_id}").json()["status"] == "failed"


@pytest.mark.stores("sqlite-wal")
def test_queue_limits_cannot_change_without_configured_queues(manager_of):
    with client_of(manager_of()) as client:
        answer = client.patch("/tasks/queues/default", json={"concurrency": 5})

    assert answer.status_code == 400
    assert "queues=" in answer.json()["detail"]
