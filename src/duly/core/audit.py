"""The invariants of every database, and the message for each invariant that is violated."""

from typing import NamedTuple

AUDIT_CHECKS = {
    "runs_missing": "went missing: accepted, and neither live nor finished nor pruned",
    "runs_unaccounted": "appeared without being accepted",
    "in_two_places": "is in more than one of the tables of live, waiting and finished runs",
    "held_by_nobody": "is running, and its worker is unknown or has been dead for a while",
    "settled_twice": "has two recorded ends for one claim",
    "settled_while_held": "has a recorded end for a claim that is still held",
    "claim_ahead": "has an attempt or a step of a claim that was never made",
    "ended_without_claim": "was ended by an attempt, but was never claimed",
    "succeeded_twice": "returned twice in one generation",
    "attempts_of_no_run": "has recorded attempts, but does not exist",
    "logs_of_no_run": "has log lines, but does not exist",
    "steps_of_no_run": "has recorded steps, but does not exist",
    "tags_of_no_run": "has tags, but does not exist",
    "tags_missing": "cannot be found by its tags",
    "key_of_no_run": "holds its key forever, but is not live",
    "key_outlived_run": "has a key that is in force, but does not exist",
    "key_expiring": "is live, but its key may be given to another run",
    "fired_without_run": "was fired by a schedule, but does not exist",
    "firings_miscounted": "records more or fewer waiting instants than there are",
    "fence_behind": "has a fence that will be issued again",
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
