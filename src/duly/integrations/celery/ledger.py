"""Finds a ledger for a Celery application that names none: the Redis that is its broker."""

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import celery

from duly.core.addresses import shown_address
from duly.errors import BadOption
from duly.guard import Guard
from duly.observe.logs import log_notice

_TLS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_SCHEMES = {"redis": "redis", "rediss": "rediss", "redis+socket": "unix", "unix": "unix"}


class LedgerNotConfigured(BadOption):
    """A Celery application names no ledger, and its broker cannot be used as one."""

    def __init__(self, app: str, why: str) -> None:
        super().__init__(
            f"the Celery application {app!r} has no ledger for the keys of its tasks: {why}. Name "
            f"a PostgreSQL or a Redis that all workers reach: Celery(…, guard='redis://host/0'), "
            "duly_guard_database in the configuration, or DULY_URL"
        )
        self.app = app


def guard_on_broker(app: celery.Celery) -> Guard:
    """Return a guard that keeps its keys in the broker's Redis.

    Raise LedgerNotConfigured if the broker cannot be used. The guard refuses a Redis that evicts
    keys when it opens it.
    """
    name = str(app.main or "")
    url = _ledger_url(name, _only_broker(name, app))
    if app.conf.broker_use_ssl:
        raise LedgerNotConfigured(name, "broker_use_ssl is not part of the address of its broker")
    # Applications that share a Redis under different prefixes do not share messages.
    prefix = (app.conf.broker_transport_options or {}).get("global_keyprefix", "")
    guard = Guard(url, namespace=prefix, on_eviction="refuse")
    log_notice(
        f"the Celery application {name!r} has no guard setting, so it keeps the keys of its tasks "
        f"in its broker, {shown_address(url)}"
    )
    return guard


def _only_broker(name: str, app: celery.Celery) -> str:
    """Return the address of the one broker that workers and senders share."""
    read, write = app.conf.broker_read_url, app.conf.broker_write_url
    urls: list[Any] = [
        part
        for given in (read, write)
        for whole in ([given] if isinstance(given, str | None) else given)
        for part in (whole or "amqp://").split(";")
    ]
    if len(set(urls)) > 1:
        raise LedgerNotConfigured(
            name, "it has several brokers, but all workers need one place for keys"
        )
    return str(urls[0])


def _ledger_url(name: str, broker: str) -> str:
    """Return the address of a broker's Redis in the form that redis-py accepts."""
    given = urlsplit(broker)
    if given.scheme not in _SCHEMES:
        kind = given.scheme or broker.partition(":")[0]
        raise LedgerNotConfigured(name, f"its broker is {kind}, which cannot store keys")
    options = dict(parse_qsl(given.query))
    if "credential_provider" in options:
        raise LedgerNotConfigured(
            name, "credential_provider gives no password that a guard could use"
        )
    # The other options belong to Celery's transport.
    kept = {option: options[option] for option in _TLS if option in options}
    if "ssl_cert_reqs" in kept:
        kept["ssl_cert_reqs"] = kept["ssl_cert_reqs"].lower().removeprefix("cert_")
    database = options.get("virtual_host", "").strip("/") or options.get("db")
    if _SCHEMES[given.scheme] == "unix" and database:
        kept["db"] = database
    # Built without urlunsplit, which drops the // of an empty host for unknown schemes.
    query = f"?{urlencode(kept)}" if kept else ""
    return f"{_SCHEMES[given.scheme]}://{given.netloc}{given.path}{query}"
