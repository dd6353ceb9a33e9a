"""The invariants of every database, and the message for each invariant that is violated."""

from typing import NamedTuple

AUDIT_CHECKS = {
    "runs_missing": "went missing: accepted, and neither live nor finished nor pruned",
    "runs_unaccounted": "appeared that nobody accepted",
    "in_two_places": "is in more than one of the tables of live, waiting and finished runs",
    "held_by_nobody": "is running, and its worker is not known, or has been dead for a while",
    "settled_twice": "has two ends on record for one claim",
    "settled_while_held": "has an end on record for the claim that is still held",
    "claim_ahead": "has an attempt or a step of a claim that was never made",
    "ended_without_claim": "ended by an attempt, and was never claimed",
    "succeeded_twice": "returned twice in one generation",
    "attempts_of_no_run": "has attempts on record, and is not there",
    "logs_of_no_run": "has log lines, and is not there",
    "steps_of_no_run": "has steps on record, and is not there",
    "tags_of_no_run": "has tags, and is not there",
    "tags_missing": "cannot be found by the tags that it has",
    "key_of_no_run": "keeps its key from others for ever, and is not live",
    "key_outlived_run": "has a key that is in force, and is not there",
    "key_expiring": "is live, and its key may be given to another run",
    "fired_without_run": "was fired by a schedule, and is not there",
    "firings_miscounted": "says that more, or fewer, instants wait than do",
    "fence_behind": "has a fence that will be given out again",
}
"""By the name of the check's statement in `audit.sql`: what is wrong with each finding."""


class AuditFinding(NamedTuple):
    """One violation of an invariant."""

    check: str
    subject: str
    """The id of a run, the name of a schedule or a key, or a number of runs."""
    text: str


class RunTotals(NamedTuple):
    """The number of runs in each place, and the number ever accepted."""

    queued: int
    running: int
    waiting: int
    finished: int
    accepted: int
    """Since the database was created."""
    pruned: int
