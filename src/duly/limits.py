"""Every bound of the engine in one place, so that nothing grows without a bound."""

PAYLOAD_BYTES = 256 * 1024
PAYLOAD_DEPTH = 64
RESULT_BYTES = 1024 * 1024
ERROR_CHARACTERS = 4_096
TRACEBACK_CHARACTERS = 16_384
LOG_MESSAGE_CHARACTERS = 8_192
LOG_LINES_PER_ATTEMPT = 10_000
LOG_LINES_PER_SECOND = 1_000
"""The number of finished runs that a process logs per second. Lines of more runs wait."""
LOG_QUEUE_LINES = 5_000
"""The number of lines of finished runs that wait. Lines of more runs are dropped and counted."""
PROGRESS_CHARACTERS = 500
REASON_CHARACTERS = 1_000

KEY_BYTES = 255
NAME_BYTES = 255
TAGS = 32
TAG_CHARACTERS = 255
PRIORITY = 1_000_000
CRASH_LIMIT = 3
FREE_OUTAGES = 5
"""The number of consecutive attempts that an outage may end without using a retry."""
SUSPECT_CHILDREN = 4
"""The number of one-slot children that a supervisor has at once for suspect runs."""

QUEUE_SIZE = 1_000_000
"""The largest `max_size` of a queue. Enqueueing counts up to this number."""
ENQUEUE_BATCH = 2_000
TRANSACTION_BYTES = 8 * 1024 * 1024
"""A batch of enqueues, claims, settles, logs or prunes ends when its payloads reach this size."""
COMMIT_OPS = 2_000
CLAIM_BATCH = 500
LIMITS_BATCH = 100
"""The number of task limits that one claim checks. The next claim continues after the last."""
TICK_BATCH = 1_000
FIRE_BATCH = 200
LATE_BATCH = 20
"""The maximum number of schedules that one pass reads: on-time ones, and late ones."""
LOOK_INSTANTS = 50_000
LOOK_ROWS = 1_000
LOOK_BYTES = 8 * 1024 * 1024
"""The maximum number of instants, rows and bytes of arguments that one pass produces."""
RELAY_BATCH = 500
RELAY_STALE_SECONDS = 60
RELAY_LONGEST_SECONDS = 3600
"""The delay before a run that was handed over but not claimed is sent again: first, and longest."""
RELAY_FULL_SECONDS = 5
"""The delay before a message is sent again that arrived while its queue's limit was full."""
SUMMARY_RUNS = 10_000
"""The number of most recently finished runs that a summary covers."""
FEW_TAGGED = 200
"""Up to this many runs of one tag are looked up one by one. With more, scans find them quickly."""
COUNT_FOLD_ROWS = 5_000
"""The number of run counts that are added up at once, for each span of time."""
SCAN_RUNS = 10_000
"""The number of most recent runs that a search without an index scans."""
RUNNING_RUNS = 100_000
"""The number of running runs that a list of them scans. Workers have fewer slots than this."""
SKEW_SECONDS = 60
"""The maximum clock skew between enqueueing hosts for which a list knows its end."""
LOOK_RUNS = 200
LOOKS = 25
"""How many runs a search for arguments or errors reads at once, and how many times."""
GROUPS = 500
"""The maximum number of groups of dead letters that a list reads."""
JUMPS = 500
"""The number of lanes and priorities of a queue whose oldest runs are checked."""
SEARCH_SECONDS = 2.0
"""How long such a search lasts. Then it returns what it has found, and where to continue."""
FILTER_CHARACTERS = 1_000
FILTER_TERMS = 20
"""How long a filter of runs may be, and how many terms it may have."""
COUNT_CAP = 10_000
"""Counts stop here, and show "10,000+"."""
DEAD_COUNT_CAP = 1_000
"""The same for all dead letters together, which every page of the dashboard counts."""
COUNT_LOOKS = 60
"""How many pages are read for a count that no counter provides. Enough for the cap."""
COUNT_SECONDS = 2.0
"""How long such a count lasts. Then the rest is "and more"."""
PAGE = 200
PAGE_DEFAULT = 50

DELAY_SECONDS = 10 * 365 * 86_400
"""A delay beyond ten years is a unit mistake (milliseconds for seconds), not a plan."""

INTERVAL_SECONDS = 366 * 86_400
CRON_CHARACTERS = 500
LATEST_YEAR = 9_000
CATCH_UP = 1_000
"""How many missed instants of a schedule may be caught up, and how many firings may wait."""
PLAN_INSTANTS = 10_000
"""How many instants of a schedule one pass accounts for."""
SINGLE_FIRINGS = 100
"""Of the instants that are skipped together, the newest have a row each, up to this number."""

LOCK_SECONDS = 86_400

GUARD_LEASE_SECONDS = 30.0
GUARD_TTL_SECONDS = 24 * 3600
GUARD_KEY_BYTES = 512
HTTP_KEY_CHARACTERS = 255
HTTP_BODY_BYTES = 1024 * 1024
HTTP_FORM_SECONDS = 30.0
"""How long a client may take to send a form of the dashboard."""
HTTP_KEPT_RESPONSES = 50_000
"""How many responses one caller may keep in the ledger, by default."""
HTTP_KEPT_UNIT = 16 * 1024
"""A response counts once, and once more for every this many bytes."""
ADDING_LEASE_SECONDS = 10.0
"""How long `add_task` waits for a worker that is silent or was declared dead to return."""
ADDING_THREADS = 16
"""How many threads of a TaskManager add tasks at once. Other threads wait for one of them."""
OBSERVERS_SECONDS = 5.0
"""How long observers may delay the end of an application, and how long after their cancel."""
DEAD_LETTER_TTL_SECONDS = 30 * 86_400
DEAD_LETTER_LEASE_SECONDS = 60.0
"""How long a dead letter stays claimed by a process that died while it sent the letter again."""
DEAD_LETTER_WRITE_SECONDS = 10.0
"""How long duly tries to write a dead letter that no other process can write."""
DEAD_LETTER_RETRY_FAILURES = 3
"""After this many consecutive dead letters that the engine refused, the engine counts as down."""
RESERVATION_SECONDS = 3600.0
FORGET_BATCH = 4
"""How many expired keys are deleted with each key that ends, so that they cannot accumulate."""
REDIS_SECONDS = 5.0
"""How long a Redis may take to answer."""
REDIS_GRACE_SECONDS = 86_400.0
"""How long after its lease a held key stays in Redis, so that a late holder can still finish."""

SQLITE_TRANSACTION_SECONDS = 5.0
"""How long a task's transaction may keep every other writer waiting."""
POSTGRES_TRANSACTION_SECONDS = 60.0

LEASE_SECONDS = 15.0
BEAT_SECONDS = 5.0
LEASE_MARGIN_SECONDS = 2.0
GRACE_SECONDS = 25.0
STALLED_SECONDS = 300.0
"""How long an engine thread of a worker may spend in one turn.

Each wait for the store during a turn is far shorter.
"""
UNSERVED_SECONDS = 60.0
"""How long a run may be ready while a worker that serves it is idle, for `duly health`."""
WATCHERS = 8
"""How many workers read the heartbeats of all others. With this many or fewer, all do."""
LEFT_FILES_SECONDS = 7 * 86_400
"""How long the files of a worker stay on its host if its runs were recovered on another one."""
POLL_SECONDS = 1.0
LOOK_SECONDS = 0.5
RECHECK_SECONDS = 30.0
"""How long a run may wait for a result that is there, if its producer died before the wake-up."""
RECHECK_LONGEST_SECONDS = 600.0
"""The same on PostgreSQL, if the server's row counters missed the end of the run."""
UNCLAIMED_SECONDS = 5.0
"""Log a warning after waiting this long for a run that no worker has claimed."""
KEY_TTL_SECONDS = 24 * 3600
RETENTION_SECONDS = 7 * 86_400.0
DEAD_RETENTION_SECONDS = 30 * 86_400.0
ACT_RETENTION_SECONDS = 365 * 86_400.0
FOREVER_SECONDS = 1_000 * 365 * 86_400
"""Anything that is kept forever is kept for a thousand years."""
KEPT_LOOK_SECONDS = 30 * 86_400
"""The longest time until the retention of a run is checked again. Its task may have changed it."""
CUT_OVER_BATCH = 200
"""How many rows of another system's tables one transaction moves."""
CUT_OVER_LATE_SECONDS = 86_400
"""A one-time task of the async scheduler that is later than this was missed, and is not moved."""

PARENT_LOOK_SECONDS = 86_400
"""How often duly checks whether a parent run still needs the result of a finished child."""

TOKEN_BITS = 128
"""The minimum strength of a token: 22 letters and digits, or 32 hexadecimal digits."""
SESSION_SECONDS = 12 * 3600
LOGIN_FAILURES = 10
LOGIN_SECONDS = 60.0
"""After this many wrong tries within this time, clients are refused and names answered late."""
LOGIN_FAILURES_OF_ALL = 100
"""After this many wrong tries within that time, from any clients, every answer is delayed."""
LOGIN_DELAY_SECONDS = 1.0
LOGIN_CLIENTS = 4_096
"""How many clients, and how many names, are remembered with their wrong tries."""
PASSWORD_LENGTH = 12
PASSWORD_CHARACTERS = 5
"""How many of its characters must differ."""
PAGE_SECONDS = 5.0
"""How long all reads of a page may take. A slower page shows a message instead."""
READS_OF_ONE = 2
"""How many requests of one viewer may read from the database at the same time.

This is half of the connections that a process reads with on PostgreSQL.
"""
READ_WAIT_SECONDS = 10.0
"""How long further requests of that viewer wait before they are refused."""
LIVE_STREAMS = 64
"""How many pages are kept up to date at once. Further pages only change when reloaded."""
LIVE_STREAMS_OF_ONE = 16
"""How many of them may belong to one viewer."""
LIVE_SECONDS = 1.0
LIVE_SEND_SECONDS = 30.0
"""A page that accepts no update for this long counts as closed. WSGI does not report closing."""
LIVE_LONGEST_SECONDS = 300.0
"""After this long, a page must request its updates again, and its viewer is authenticated again."""
BULK_LEASE_SECONDS = 15.0
"""If its process gives no sign for this long, another process continues a bulk action."""
BULK_LOOK_SECONDS = 5.0
"""How often a server process looks for such bulk actions, at most."""
BULK_TRIES = 10
BULK_PAUSE_SECONDS = 3.0
"""How often, and with which pause, a bulk action is retried while the database is down."""
BULK_RETENTION_SECONDS = 30 * 86_400.0
"""How long a bulk action is shown after its end."""
