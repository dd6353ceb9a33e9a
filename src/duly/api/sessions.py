"""`app.sessions`: dashboard sessions that were signed out.

A session is a signed cookie and is not stored. Signing out writes an audit entry, so that every
process knows about it and the audit log shows it. Audit entries outlive any session.
"""

from duly.actor import resolve_actor
from duly.app_protocol import AppProtocol
from duly.core.key import check_name
from duly.store.ops.operators import RecordAuditEntry


class Sessions:
    """Sessions of the dashboard."""

    def __init__(self, host: AppProtocol) -> None:
        self._app = host

    def end(self, session: str, *, actor: str) -> None:
        """Make every process refuse a session from now on."""
        subject = _subject(session)
        self._app.store.do(RecordAuditEntry(resolve_actor(actor), "sign out", subject))

    def has_ended(self, session: str) -> bool:
        """Return whether a session was signed out."""
        return self._app.store.has_audit_entry(_subject(session))


def _subject(session: str) -> str:
    return f"session {check_name('session', session)}"
