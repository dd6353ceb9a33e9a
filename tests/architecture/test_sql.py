"""Rules for the SQL statements that the guarantees depend on."""

import re
from pathlib import Path

import pytest

from duly.core.audit import AUDIT_CHECKS
from duly.store.sqlite.transfer import TABLES

ROOT = Path(__file__).parents[2]
STORES = ROOT / "src" / "duly" / "store"
DIALECTS = ("sqlite", "postgres")

IN_ONE_STATEMENT = "PostgreSQL combines these statements in one statement"
ONE_WRITER = "SQLite has one writer, so it needs no locks or waits"
ONE_WAY = "data moves only from SQLite to PostgreSQL"
ONE_DIALECT = {
    "enqueue.held_by_name": "on PostgreSQL a key has a row for each name of its task",
    "enqueue.give_up_keys": "on SQLite no other process takes a key between two statements",
    "claim.bytes_taken": "SQLite takes queue by queue, PostgreSQL in one statement",
    "recover.busy": "SQLite has no server that could still execute a statement",
    # Several short statements on SQLite, one with data-modifying parts on PostgreSQL.
    **dict.fromkeys(
        [
            "claim.ready",
            "enqueue.count",
            "enqueue.later",
            "enqueue.plain",
            "enqueue.tags",
            "settle.drop_set_aside",
            "settle.leave",
            "settle.record_attempt",
            "settle.set_aside",
            "settle.standing",
            "settle.start_key_expiry",
            "settle.succeed",
            "settle.tally",
            "settle.tally_retry",
            "claim.sizes_ready",
        ],
        IN_ONE_STATEMENT,
    ),
    **dict.fromkeys(
        [
            "enqueue.accept",
        ],
        IN_ONE_STATEMENT,
    ),
    # Locks and checks that are only necessary with several writers.
    **dict.fromkeys(
        [
            "claim.latest_claim",
            "enqueue.known",
            "enqueue.ready_one",
            "enqueue.ready_one_and_hint",
            "settle.lock_waits",
            "claim.limited_queues",
            "claim.lock_limit",
            "claim.take_from_queue",
            "operate.limit_wait",
            "recover.watchers",
        ],
        ONE_WRITER,
    ),
    "claim.drop_handed": IN_ONE_STATEMENT,
    "claim.carried": ONE_WRITER,
    "claim.queue_of_carried": ONE_WRITER,
    **dict.fromkeys([f"move.{each}" for each in (*TABLES, "row_count", "latest_fence")], ONE_WAY),
    **dict.fromkeys(["move.columns", "move.is_used", "move.set_fence"], ONE_WAY),
    **dict.fromkeys(
        [f"testing.clock_{part}" for part in ("advance", "begins", "function", "table", "time")],
        "SQLite uses the time of the host, which tests replace in Python",
    ),
    **dict.fromkeys(
        ["diagnose.broken_indexes", "diagnose.check_indexes", "diagnose.schema_of_amcheck"],
        "SQLite has a pragma for this check",
    ),
    "diagnose.creators": "SQLite has no functions in its files",
    "diagnose.oldest_transaction": "SQLite does not report which process has a transaction open",
    "enqueue.begin_to_write": "on PostgreSQL a transaction that has read may still write",
    "enqueue.database": "SQLite checks the file instead, before it writes",
    "enqueue.exists": "the function on PostgreSQL returns whether the run is new",
    "enqueue.place": "the answer of PostgreSQL also contains the database",
    "inspect.live_workers": "workers on SQLite beat in files, so their rows are only listed",
    "recover.beat": "SQLite's workers beat in files, not in rows",
    "recover.beats": "SQLite's workers beat in files, not in rows",
    "recover.peers": "hints on SQLite contain no runs",
    "recover.condemn": "SQLite's workers beat in files, not in rows",
    **dict.fromkeys(
        [f"restore.{each}" for each in ("has_identity", "identity", "adopt_file")],
        "a PostgreSQL database is not a file that can be copied",
    ),
    **dict.fromkeys(
        [f"floors.{each}" for each in ("bound", "lock", "look", "newest")],
        "SQLite keeps no dead index entries for the transactions of others",
    ),
    **dict.fromkeys(
        ["claim.note_limit_floor"],
        "SQLite keeps no dead index entries for the transactions of others",
    ),
    "inspect.now": "SQLite's wall time is the host's, not the database's",
}
"""Statements that only one dialect has, with the reason."""

CLAIMS = (
    "claim.take",
    "claim.take_carried",
    "claim.take_from_queue",
    "claim.take_limited",
)
UNFENCED = {
    **dict.fromkeys(CLAIMS, "it creates the claim that fences later writes"),
    "operate.ask_cancel": "a cancel is a request, which any process may make for a running run",
}
"""Writes to a running run that do not check its claim, with the reason."""


def sql_files(dialect: str) -> list[Path]:
    """Return the files with the statements of a dialect."""
    return sorted((STORES / "sql").glob(f"*.{dialect}.sql"))


def statements(dialect: str) -> dict[str, list[str]]:
    """Return the statements of a dialect by file and name, without comments.

    A script has several parts.
    """
    found = {}
    for path in sql_files(dialect):
        file = path.name.partition(".")[0]
        texts = re.split(r"^-- :name (\w+)$", path.read_text(), flags=re.MULTILINE)
        for name, body in zip(texts[1::2], texts[2::2], strict=True):
            parts = body.split("-- :then\n")
            found[f"{file}.{name}"] = [re.sub(r"--[^\n]*", "", part) for part in parts]
    return found


def guards(body: str) -> str:
    """Return a statement without its SET clause. The rest selects the rows that it writes."""
    return re.sub(r"\bSET\b.*?\b(FROM|WHERE)\b", r"\1", body, flags=re.DOTALL)


VERBS = "\n".join(path.read_text() for path in (STORES / "verbs").glob("*.py"))
READS = (STORES / "inspector.py").read_text()
USED_ON_BOTH = set(re.findall(r'"([a-z]+\.[a-z_]+)"', VERBS + READS)) | {
    f"audit.{check}" for check in AUDIT_CHECKS
}
"""The statements that verbs and reads execute, on whichever database."""
COORDINATING = set(re.findall(r'\.coordinate\(\s*"([a-z]+\.[a-z_]+)"', VERBS))
"""The statements that verbs execute only where there are several writers at a time."""

EVERY = [
    (f"{dialect} {name}", name, part)
    for dialect in DIALECTS
    for name, parts in statements(dialect).items()
    for part in parts
]


def test_a_statement_in_only_one_dialect_has_a_reason():
    sqlite, postgres = set(statements("sqlite")), set(statements("postgres"))

    alone = sqlite ^ postgres

    assert alone - set(ONE_DIALECT) - COORDINATING == set(), (
        "a statement in one dialect has no reason"
    )
    assert set(ONE_DIALECT) & sqlite & postgres == set(), (
        "a statement with a reason is in both dialects now"
    )


def test_both_dialects_have_the_same_files():
    statements = [{path.name.partition(".")[0] for path in sql_files(d)} for d in DIALECTS]
    migrations = [{path.name for path in (STORES / d / "migrations").glob("*")} for d in DIALECTS]

    assert statements[0] == statements[1]
    assert migrations[0] == migrations[1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_used(dialect):
    source = "\n".join(path.read_text() for path in (STORES / dialect).rglob("*.py"))
    source += (STORES / "queue_capacity.py").read_text()  # It uses statements of both dialects.

    unused = [
        name
        for name in statements(dialect)
        if name not in USED_ON_BOTH
        and f'"{name}"' not in source
        and f'"{name.partition(".")[2]}"' not in source
    ]

    assert unused == []


def test_every_statement_of_a_verb_or_a_read_exists():
    assert USED_ON_BOTH - set(statements("postgres")) == set()
    assert USED_ON_BOTH - COORDINATING - set(statements("sqlite")) == set()


def test_a_statement_for_several_writers_is_only_on_postgres():
    assert COORDINATING & set(statements("sqlite")) == set()
    assert COORDINATING & set(ONE_DIALECT) == set(), "its reason is that a verb coordinates by it"


def test_no_write_on_sqlite_begins_with_a_common_table():
    # The driver counts no rows of such a write, unless the write returns them.
    uncounted = [
        place
        for place, _, part in EVERY
        if place.startswith("sqlite ")
        and re.match(r"\s*(:part\(\w+\)|WITH\b)", part)
        and re.search(r"\b(INSERT INTO|UPDATE|DELETE FROM)\b", part)
        and "RETURNING" not in part
    ]

    assert uncounted == []


def test_only_a_claim_makes_a_run_running():
    making = [
        place
        for place, name, body in EVERY
        if name not in CLAIMS
        and re.search(r"\bSET\s+(\w+\s*=\s*[^,]+,\s*)*state\s*=\s*'running'", body)
    ]
    beginning = [
        place
        for place, _, body in EVERY
        for columns in re.findall(r"INSERT INTO duly_runs\s*\(([^)]*)\)", body)
        if "state" in re.findall(r"\w+", columns)
    ]

    assert making == []
    assert beginning == [], "the column default makes a new run queued"


def test_every_write_about_a_running_run_names_its_claim():
    unfenced = [
        place
        for place, name, body in EVERY
        if name not in UNFENCED
        and re.search(r"\b(UPDATE|DELETE FROM)\s+duly_runs\b", body)
        and not re.search(r"\bclaim_number\s*=\s*\S*claim_numbers?\b", guards(body))
        and not re.search(r"\bstate\s*(=\s*'queued'|<>\s*'running')", guards(body))
    ]

    assert unfenced == []


def test_only_a_settle_ends_the_running_state_of_a_run():
    leaving = [
        place
        for place, name, body in EVERY
        if name not in UNFENCED
        and not name.startswith(("settle.", "journal."))
        and re.search(r"\b(UPDATE|DELETE FROM)\s+duly_runs\b", body)
        and re.search(r"\bstate\s*=\s*'running'", body)
    ]
    ending = [
        place
        for place, name, body in EVERY
        if name.startswith("journal.")
        and re.search(r"\bstate\s*=", body.partition("SET")[2].partition("WHERE")[0])
    ]

    assert leaving == []
    assert ending == [], "a journal statement must not end an attempt"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_database_has_check_constraints_for_the_invariants(dialect):
    text = "\n".join(path.read_text() for path in (STORES / dialect / "migrations").glob("*.sql"))
    flat = re.sub(r"\s+", " ", text)

    for check in (
        "CHECK (state IN ('queued', 'running'))",
        "CHECK ((state = 'running') = (worker_id IS NOT NULL))",
        "CHECK (state = 'queued' OR claim_number >= 1)",
        "CHECK (state <> 'succeeded' OR outcome = 'returned')",
        "CHECK (state IN ('succeeded', 'failed', 'interrupted', 'cancelled'))",
    ):
        assert check in flat
