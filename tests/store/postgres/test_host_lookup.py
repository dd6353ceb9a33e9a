"""PostgreSQL only: host names, and name servers that are slow, fail or give new answers."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duly.errors import StoreUnavailable
from duly.store.ops.runs import Settled
from duly.store.postgres import connection as connection_module
from duly.store.postgres import host_lookup
from duly.store.postgres.address import Address
from duly.store.postgres.connection import connect
from duly.store.postgres.session_settings import HOT
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import TIMEOUT, WORKER, claim_one, enqueue_one, register, succeed
from tests.store.postgres.test_sessions import terminate_all
from tests.store.postgres.verbs import InBackground

NAME = "database.example"
UNUSED_ADDRESS = "127.0.0.99"
"""An address at which no server listens."""


class NameServer:
    """Answers lookups with the addresses that a test sets."""

    def __init__(self) -> None:
        self.addresses = ["127.0.0.1"]
        self.error: OSError | None = None
        self.answers = threading.Event()
        """Cleared while the name server hangs."""
        self.answers.set()
        self.lookups: list[str] = []
        self._real = socket.getaddrinfo

    def getaddrinfo(self, host: Any, port: Any, *args: Any, **options: Any) -> Any:
        """Return the addresses of the name. Other names are resolved normally."""
        if not str(host).endswith(NAME):
            return self._real(host, port, *args, **options)
        self.lookups.append(host)
        assert self.answers.wait(TIMEOUT)
        if self.error is not None:
            raise self.error
        found = [self._real(address, port, *args, **options) for address in self.addresses]
        return [answer for answers in found for answer in answers]


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    """A name server that knows the address of the database."""
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    server.answers.set()


@pytest.fixture
def named_url(url: str) -> str:
    """The address of the database, with a host name."""
    return url.replace("127.0.0.1", NAME)


def test_a_worker_that_lost_its_connections_beats_and_settles_while_the_name_server_hangs(
    named_url, connection, names
):
    with closing(open_store(named_url)) as store:
        register(store)
        enqueue_one(store)
        held = claim_one(store)
        names.answers.clear()
        terminate_all(connection)

        beating = InBackground(lambda: store.heartbeats().beat([WORKER]))
        assert beating.answer() == {WORKER}
        settling = InBackground(lambda: succeed(store, held))
        assert settling.answer() is Settled.DONE
        assert not names.answers.is_set()


def test_a_connection_keeps_the_host_name_for_tls(named_url, names):
    with closing(connect(Address(named_url), HOT)) as session:
        assert (session.info.host, session.info.hostaddr) == (NAME, "127.0.0.1")


def test_only_one_lookup_is_under_way_while_several_connections_wait(named_url, names):
    address = Address(named_url)
    connect(address, HOT).close()
    names.answers.clear()

    for _ in range(3):
        connect(address, HOT).close()

    assert names.lookups == [NAME, NAME]


def test_a_lookup_that_fails_keeps_the_known_addresses(named_url, names):
    address = Address(named_url)
    connect(address, HOT).close()
    names.error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    with closing(connect(address, HOT)) as session:
        assert session.info.hostaddr == "127.0.0.1"


def test_a_connection_waits_for_the_first_lookup(named_url, names, monkeypatch):
    monkeypatch.setattr(host_lookup, "LOOKUP_SECONDS", 0.0)
    names.answers.clear()

    connecting = InBackground(lambda: connect(Address(named_url), HOT))
    names.answers.set()

    with closing(connecting.answer()) as session:
        assert session.info.hostaddr == "127.0.0.1"


def test_an_unknown_name_is_an_outage_with_a_reason(named_url, names):
    names.error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(StoreUnavailable, match=f"'{NAME}'.*Name or service not known"):
        connect(Address(named_url), HOT)


class TestFailover:
    """The name has another address than before."""

    def test_a_new_answer_of_the_name_server_is_used_at_once(self, named_url, names):
        names.addresses = [UNUSED_ADDRESS]
        address = Address(named_url)
        with pytest.raises(StoreUnavailable):
            connect(address, HOT)
        names.addresses = ["127.0.0.1"]

        connect(address, HOT).close()

    def test_a_slow_answer_is_used_if_the_old_address_does_not_answer(
        self, named_url, names, monkeypatch
    ):
        monkeypatch.setattr(host_lookup, "PATIENCE_SECONDS", TIMEOUT)
        names.addresses = [UNUSED_ADDRESS]
        address = Address(named_url)
        with pytest.raises(StoreUnavailable):
            connect(address, HOT)
        names.addresses = ["127.0.0.1"]
        names.answers.clear()
        tried = _tried_addresses(monkeypatch)

        connecting = InBackground(lambda: connect(address, HOT).close())
        assert tried.first.wait(TIMEOUT)
        names.answers.set()

        connecting.answer()
        assert tried.addresses == [UNUSED_ADDRESS, "127.0.0.1"]

    def test_a_slow_answer_is_used_if_the_old_server_is_read_only(
        self, named_url, names, monkeypatch
    ):
        monkeypatch.setattr(host_lookup, "PATIENCE_SECONDS", TIMEOUT)
        address = Address(named_url)
        connect(address, HOT).close()
        names.addresses = ["127.0.0.2"]
        names.answers.clear()
        tried = _tried_addresses(monkeypatch)
        tried.read_only = "127.0.0.1"

        connecting = InBackground(lambda: connect(address, HOT))
        assert tried.first.wait(TIMEOUT)
        names.answers.set()

        # No server listens there, but that address has to be tried.
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.2"):
            connecting.answer()
        assert tried.addresses == ["127.0.0.1", "127.0.0.2"]

    def test_a_read_only_server_is_used_as_long_as_no_other_is_known(
        self, named_url, names, monkeypatch
    ):
        monkeypatch.setattr(host_lookup, "PATIENCE_SECONDS", 0.0)
        address = Address(named_url)
        connect(address, HOT).close()
        names.answers.clear()
        tried = _tried_addresses(monkeypatch)
        tried.read_only = "127.0.0.1"

        with closing(connect(address, HOT)) as session:
            assert session.is_read_only


class _Tried:
    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.first = threading.Event()
        """Set when the first address has been tried."""
        self.read_only: str | None = None


def _tried_addresses(monkeypatch: pytest.MonkeyPatch) -> _Tried:
    """Record the addresses to which connections are opened."""
    tried = _Tried()
    session = connection_module.PostgresSession
    connect_as_usual = session.connect

    def noted(*args: Any, **options: Any) -> Any:
        tried.addresses.append(options["hostaddr"])
        try:
            if options["hostaddr"] == tried.read_only:
                options["options"] = "-c default_transaction_read_only=on"
            return connect_as_usual(*args, **options)
        finally:
            tried.first.set()

    monkeypatch.setattr(session, "connect", noted)
    return tried


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"host": "127.0.0.1"}, {"host": "127.0.0.1"}),
        ({"host": "::1", "port": "1"}, {"host": "::1", "port": "1"}),
        ({"host": "/run/postgresql"}, {"host": "/run/postgresql"}),
        ({}, {}),
        ({"host": NAME, "hostaddr": "127.0.0.5"}, {"host": NAME, "hostaddr": "127.0.0.5"}),
        (
            {"host": f"a.{NAME},b.{NAME}", "port": "1,2"},
            {
                "host": f"a.{NAME},a.{NAME},b.{NAME},b.{NAME}",
                "hostaddr": "127.0.0.1,127.0.0.2,127.0.0.1,127.0.0.2",
                "port": "1,1,2,2",
            },
        ),
        (
            {"host": f"{NAME},/run", "port": 5},
            {"host": f"{NAME},{NAME},/run", "hostaddr": "127.0.0.1,127.0.0.2,", "port": "5,5,5"},
        ),
    ],
)
def test_only_names_are_looked_up(given, found, names, monkeypatch):
    monkeypatch.delenv("PGHOST", raising=False)
    monkeypatch.delenv("PGHOSTADDR", raising=False)
    names.addresses = ["127.0.0.1", "127.0.0.2"]

    resolved = host_lookup.HostResolver().resolve(given)

    assert resolved.parameters == found
    assert resolved.newer() is None


def test_a_host_of_the_environment_is_looked_up_too(names, monkeypatch):
    monkeypatch.setenv("PGHOST", NAME)
    monkeypatch.setenv("PGPORT", "7")

    resolved = host_lookup.HostResolver().resolve({"dbname": "x"})

    found = {"dbname": "x", "host": NAME, "hostaddr": "127.0.0.1", "port": "7"}
    assert resolved.parameters == found


def test_ports_that_do_not_fit_the_hosts_are_refused_by_the_driver(names):
    resolved = host_lookup.HostResolver().resolve({"host": f"a.{NAME},b.{NAME}", "port": "1,2,3"})

    with pytest.raises(psycopg.OperationalError, match="could not match"):
        psycopg.connect(**resolved.parameters)
