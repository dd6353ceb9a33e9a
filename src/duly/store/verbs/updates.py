"""The reports of running attempts. A report is dropped if the claim is lost."""

from duly.store.ops.updates import AddLogs, RestoreLogs, SetProgress
from duly.store.transaction import Rows, Transaction
from duly.store.verbs.verb import verb


@verb(SetProgress)
def set_progress(transaction: Transaction, op: SetProgress) -> bool:
    """Record the progress of an attempt."""
    return bool(transaction.run("journal.progress", **op._asdict()))


@verb(AddLogs)
def add_logs(transaction: Transaction, op: AddLogs) -> bool:
    """Record log lines of an attempt."""
    claim = {"run_id": op.run_id, "claim_number": op.claim_number}
    if transaction.row("journal.holds", **claim) is None:
        return False
    _insert_lines(transaction, op, op.lines)
    return True


@verb(RestoreLogs)
def restore_logs(transaction: Transaction, op: RestoreLogs) -> bool:
    """Record those log lines of an attempt that the store does not have yet."""
    claim = {"run_id": op.run_id, "claim_number": op.claim_number}
    if transaction.row("journal.lock", **claim) is None:
        return False
    known = set(transaction.rows("journal.known", **claim))
    missing = tuple(line for line in dict.fromkeys(op.lines) if line not in known)
    _insert_lines(transaction, op, missing)
    return True


def _insert_lines(
    transaction: Transaction, op: AddLogs | RestoreLogs, lines: tuple[tuple[int, str, str], ...]
) -> None:
    if lines:
        rows = Rows(("ats", "levels", "messages"), lines)
        claim = {"run_id": op.run_id, "claim_number": op.claim_number}
        transaction.run("journal.log", **claim, lines=rows)
