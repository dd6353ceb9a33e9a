"""From the shared options to an open application."""

import click

from duly.app import Duly
from duly.cli.places import missing_file
from duly.cli.session import Session
from duly.errors import StoreRefused
from duly.runtime.loading import load


def app_of(session: Session, *, creates: bool = False) -> Duly:
    """Return the application that the session names, or one without tasks on its store.

    Only what `creates` may make the database's file: looking into the wrong folder must say so,
    not leave an empty database there.
    """
    reference = session.app_reference
    if reference is None:
        app = Duly(session.url)
    else:
        app = load_app(reference)
        if session.url is not None:
            app.use_url(session.url)
    missing = None if creates else missing_file(app.url)
    if missing is not None:
        message = (
            f"there is no database at {missing}; name another with --url, "
            f"or create this one with `duly db migrate`"
        )
        raise StoreRefused(message)
    click.get_current_context().call_on_close(app.close)
    return app


def app_with_tasks(session: Session, *, purpose: str) -> Duly:
    """Return the application that the session names; there must be one."""
    if session.app_reference is None:
        message = f"{purpose} needs the application: give --app module:attribute or set DULY_APP"
        raise click.UsageError(message)
    return app_of(session, creates=True)


def load_app(reference: str) -> Duly:
    """Import an application, or say at which step that failed."""
    found: Duly = load(reference)
    return found
