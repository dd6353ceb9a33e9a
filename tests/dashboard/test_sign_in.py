"""Signing in and out: limits on tries, accepted passwords, and the end of a session."""

import asyncio

import pytest

from duly import Duly
from duly.credentials import LoginLimit, TooManyTries
from duly.dashboard import BasicAuth, TokenAuth, dashboard
from duly.errors import BadOption, StoreUnavailable
from duly.limits import LOGIN_CLIENTS, LOGIN_DELAY_SECONDS, LOGIN_FAILURES, LOGIN_SECONDS
from duly.settings import WorkerSettings
from duly.worker.services.pruner import Pruner
from tests.dashboard.conftest import Client

TOKEN = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for these tests only
ANN, BOB = ("ann", "secret-of-ann"), ("bob", "secret-of-bob")
HERE = "10.0.0.1"
ON_ONE = pytest.mark.stores("sqlite")


class Time:
    """A stopped clock that records sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Record the sleep and return at once."""
        self.slept.append(seconds)


@pytest.fixture
def time(monkeypatch):
    """The clock of the login limit."""
    time = Time()
    monkeypatch.setattr("duly.credentials.monotonic", lambda: time.now)
    monkeypatch.setattr("duly.credentials.sleep", time.sleep)
    return time


def client_at(pages, address=HERE, **options):
    return Client(pages, base_url="http://localhost", client=(address, 4000), **options)


def fail_at_login(client, times=LOGIN_FAILURES):
    return [client.submit("/login", token=f"wrong {n}").status_code for n in range(times)]


@ON_ONE
def test_wrong_tokens_lock_out_their_own_address_alone(shop, time):
    pages = dashboard(shop.app, auth=TokenAuth(TOKEN))
    inside = client_at(pages)
    inside.submit("/login", token=TOKEN)

    assert fail_at_login(client_at(pages), LOGIN_FAILURES + 1)[-2:] == [401, 429]

    refused = client_at(pages).submit("/login", token=TOKEN)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "60"
    assert client_at(pages, "10.0.0.2").submit("/login", token=TOKEN).status_code == 200
    assert inside.get("/runs").status_code == 200, "a session needs no token"
    time.now += LOGIN_SECONDS
    assert client_at(pages).submit("/login", token=TOKEN).status_code == 200
    assert time.slept == []


@ON_ONE
def test_wrong_passwords_lock_out_their_own_address_alone(shop, time):
    pages = dashboard(shop.app, auth=BasicAuth(dict([ANN, BOB])))
    guesses = [client_at(pages).get("/", auth=("ann", f"wrong {n}")) for n in range(11)]

    assert [each.status_code for each in guesses[-2:]] == [401, 429]
    assert client_at(pages).get("/", auth=ANN).status_code == 429
    assert client_at(pages, "10.0.0.2").get("/", auth=BOB).status_code == 200
    assert time.slept == []
    assert client_at(pages, "10.0.0.2").get("/", auth=ANN).status_code == 200
    assert time.slept == [LOGIN_DELAY_SECONDS], "many tries with her name delay the answer"


@ON_ONE
def test_very_many_tries_delay_every_answer_and_lock_out_no_user(shop, time):
    pages = dashboard(shop.app, auth=BasicAuth(dict([ANN, BOB])))
    for number in range(100):
        client_at(pages, f"10.0.1.{number}").get("/", auth=(f"name {number}", "wrong"))
    assert time.slept == []

    assert client_at(pages).get("/", auth=BOB).status_code == 200
    assert time.slept == [LOGIN_DELAY_SECONDS]


@ON_ONE
def test_no_request_changes_the_address_that_is_counted(shop):
    pages = dashboard(shop.app, auth=TokenAuth(TOKEN))
    client = client_at(pages)
    for number in range(LOGIN_FAILURES):
        client.headers["X-Forwarded-For"] = f"10.1.0.{number}"
        client.submit("/login", token="wrong")  # noqa: S106 - no secret

    assert client.submit("/login", token=TOKEN).status_code == 429


def is_refused(limit, address):
    try:
        asyncio.run(limit.wait(address))
    except TooManyTries:
        return True
    return False


@pytest.mark.parametrize(
    ("tried", "asked", "refused"),
    [
        ("2001:db8::1", "2001:db8::ffff:2", True),  # One subscriber has a whole /64.
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_the_addresses_of_one_client_are_counted_together(time, tried, asked, refused):
    limit = LoginLimit()
    for _ in range(LOGIN_FAILURES):
        limit.note_failure(tried, "ann")

    assert is_refused(limit, asked) is refused


def test_an_address_is_refused_if_its_other_tries_fail_during_the_delay(time, monkeypatch):
    limit = LoginLimit()
    for number in range(LOGIN_FAILURES):
        limit.note_failure(f"10.0.1.{number}", "ann")

    async def fail_meanwhile(_seconds):
        for _ in range(LOGIN_FAILURES):
            limit.note_failure(HERE, "bob")

    monkeypatch.setattr("duly.credentials.sleep", fail_meanwhile)
    with pytest.raises(TooManyTries):
        asyncio.run(limit.wait(HERE, "ann"))


def test_the_memory_of_wrong_tries_is_bounded(time):
    limit = LoginLimit()

    for number in range(2 * LOGIN_CLIENTS):
        limit.note_failure(f"client {number}", f"name {number}" * 100)

    assert limit.sizes() == (LOGIN_CLIENTS, LOGIN_CLIENTS)


@pytest.mark.parametrize("password", ["", "s", "secret", "eleven char", "x" * 40, "ababababababab"])
def test_passwords_that_can_be_guessed_are_refused(password):
    for roles in (
        {"operators": {"ann": password}},
        {"operators": {}, "viewers": {"ann": password}},
    ):
        with pytest.raises(BadOption, match="password of 'ann'") as refused:
            BasicAuth(**roles)
        assert password == "" or f"{password!r}" not in str(refused.value)


def signed_in(app, address=HERE):
    client = client_at(dashboard(app, auth=TokenAuth(TOKEN)), address)
    client.submit("/login", token=TOKEN)
    return client


def test_a_session_that_was_signed_out_is_refused_by_every_process(shop, store_url):
    other_app = Duly(store_url)
    mine, colleagues = signed_in(shop.app), signed_in(shop.app)
    stolen = mine.cookies["duly_session"]

    mine.submit("/logout")

    for app in (shop.app, other_app):
        thief = client_at(dashboard(app, auth=TokenAuth(TOKEN)))
        thief.cookies.set("duly_session", stolen)
        for path in ("/runs", "/api/runs", "/metrics"):
            assert thief.get(path).status_code == 401, path
        for header in ("x", "Basic eA==", "Bearer", f"Bearer {stolen}"):
            assert thief.get("/runs", headers={"Authorization": header}).status_code >= 400, header
        thief.cookies.set("duly_session", colleagues.cookies["duly_session"])
        assert thief.get("/runs").status_code == 200, "the token opens another session"
    (act,) = [act for act in shop.app.store.list_audit_entries(None, 5) if act.act == "sign out"]
    assert act.actor == "token"
    assert stolen not in act.subject
    other_app.close()


@ON_ONE
def test_a_session_is_refused_when_an_auth_hook_cannot_check_whether_it_has_ended(shop):
    token = TokenAuth(TOKEN)
    session = signed_in(shop.app).cookies["duly_session"]
    wrapped = client_at(dashboard(shop.app, auth=lambda request: token(request)))  # noqa: PLW0108

    wrapped.cookies.set("duly_session", session)

    assert wrapped.get("/runs").status_code == 403
    assert wrapped.get("/runs", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


@ON_ONE
def test_a_malformed_session_is_refused(shop):
    token = TokenAuth(TOKEN)
    client = client_at(dashboard(shop.app, auth=token))
    for facts in ("99999999999", "a.b", "", ".", ".99999999999", "a.b.99999999999", "a.1"):
        client.cookies.set("duly_session", f"{facts}.{token._signature_of(facts)}")

        assert client.get("/runs").status_code == 401


def test_deleting_old_audit_entries_revives_no_session(shop):
    client = signed_in(shop.app)
    session = client.cookies["duly_session"]
    client.submit("/logout")

    Pruner(shop.app.store, WorkerSettings(act_retention=0.0)).tick()

    client.cookies.set("duly_session", session)
    assert client.get("/runs").status_code == 401


@ON_ONE
def test_only_a_session_can_be_signed_out(shop):
    client = client_at(dashboard(shop.app, auth=TokenAuth(TOKEN)))

    client.get("/login")
    csrf = client.cookies["duly_csrf"]
    answer = client.post("/logout", data={"csrf": csrf}, follow_redirects=False)

    assert answer.status_code == 401
    assert shop.app.store.list_audit_entries(None, 5) == []


@ON_ONE
def test_no_session_is_accepted_while_sign_outs_cannot_be_read(shop, monkeypatch):
    client = signed_in(shop.app)

    def away(_subject):
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(shop.app.store, "has_audit_entry", away)

    answer = client.get("/runs")
    assert answer.status_code == 503
    assert "The database does not answer" in answer.text


@ON_ONE
def test_a_sign_out_that_cannot_be_recorded_is_reported_as_failed(shop, monkeypatch):
    client = signed_in(shop.app)

    def away(_session, *, actor):
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr(shop.app.sessions, "end", away)

    answer = client.submit("/logout")

    assert answer.status_code == 503
    assert "still signed in" in answer.text
    assert client.get("/runs").status_code == 200
