"""Opens the application that the shared options name."""

from contextlib import closing
from importlib import import_module

import click

from duly.app import Duly
from duly.cli.output import print_note
from duly.cli.session import CommandSession
from duly.cli.urls import missing_file
from duly.errors import StoreRefused
from duly.guard import Guard
from duly.guard.ledgers import is_redis
from duly.settings import store_url
from duly.store.store_factory import STORES, open_store
from duly.worker.app_loader import is_celery, load, locate


def app_of(session: CommandSession, *, creates: bool = False) -> Duly:
    """Return the session's application, or an application without tasks on its store.

    Unless `creates` is set, this creates neither the database file nor duly's tables: a command
    that reads from the wrong place must fail, not leave an empty store there.
    """
    reference = session.app_reference
    if reference is None:
        app = Duly(session.url)
    else:
        app = load_app(reference)
        if session.url is not None:
            app.use_url(session.url)
    if not creates and not app.is_open:
        _refuse_missing(app.url, session)
    click.get_current_context().call_on_close(app.close)
    if session.verbose and not session.as_json:
        print_note(f"Store: {app.store.shown_url}")
    return app


def app_with_tasks(session: CommandSession, *, purpose: str) -> Duly:
    """Return the session's application. Raise a usage error if none is named."""
    if session.app_reference is None:
        message = f"{purpose} needs the application: give --app module:attribute or set DULY_APP"
        raise click.UsageError(message)
    return app_of(session, creates=True)


def celery_guard(session: CommandSession) -> Guard | None:
    """Return the guard of the session's Celery application, or None for other applications."""
    reference = session.app_reference
    found = None if reference is None else locate(reference)
    if not is_celery(found):
        return None
    # A module of a higher layer, which can be imported only if Celery is installed.
    integration = import_module("duly.integrations.celery")
    guard: Guard = (
        integration.guard_of(found)
        if session.url is None
        else integration.use_guard(found, session.url)
    )
    return guard


def open_guard(session: CommandSession) -> Guard | None:
    """Return the same guard as `celery_guard`, ready for use: its ledger must exist."""
    guard = celery_guard(session)
    if guard is not None:
        _refuse_missing(guard.url, session)
        click.get_current_context().call_on_close(guard.close)
        if session.verbose and not session.as_json:
            print_note(f"Store: {guard.ledger.shown_url}")
    return guard


def redis_guard(session: CommandSession) -> Guard | None:
    """Return a guard on the Redis that the session's address names, or None for a store."""
    url = session.url
    if url is None and session.app_reference is None:
        url = store_url(None)
    if url is None or not is_redis(url):
        return None
    guard = Guard(url)
    click.get_current_context().call_on_close(guard.close)
    return guard


def load_app(reference: str) -> Duly:
    """Import an application. An error names the step that failed."""
    found: Duly = load(reference)
    return found


def other_database_hint(session: CommandSession) -> str:
    """Return how to name the database that was meant.

    Without an application the address may be the usual one, which no application of the user has.
    """
    if session.app_reference is None and session.url is None:
        return "name your application with --app module:attribute, or another database with --url"
    return "name another with --url"


def _refuse_missing(url: str, session: CommandSession) -> None:
    missing = missing_file(url)
    if missing is not None:
        message = (
            f"there is no database at {missing}; {other_database_hint(session)}, "
            "or create this one with `duly db migrate`"
        )
        raise StoreRefused(message)
    if url.partition("://")[0] in STORES:
        with closing(open_store(url, migrate=False)) as store:
            if store.read_schema().version == 0:
                message = (
                    f"{store.shown_url} has no duly tables; {other_database_hint(session)}, or "
                    "create the tables with `duly db migrate`"
                )
                raise StoreRefused(message)
