"""Every bound of the engine, in one place, so that nothing grows without one."""

PAYLOAD_BYTES = 256 * 1024
PAYLOAD_DEPTH = 64
RESULT_BYTES = 1024 * 1024
ERROR_CHARACTERS = 4_096
TRACEBACK_CHARACTERS = 16_384
LOG_MESSAGE_CHARACTERS = 8_192
LOG_LINES_PER_ATTEMPT = 10_000
PROGRESS_CHARACTERS = 500
REASON_CHARACTERS = 1_000

KEY_BYTES = 255
NAME_BYTES = 255
TAGS = 32
TAG_CHARACTERS = 255
PRIORITY = 1_000_000
CRASH_LIMIT = 3
FREE_OUTAGES = 5
"""How many attempts in a row an outage may end at no cost."""
SUSPECT_CHILDREN = 4
"""How many one-slot children a keeper has at once for runs that were lost twice."""

QUEUE_SIZE = 1_000_000
"""The largest `max_size` of a queue: who enqueues counts so far."""
ENQUEUE_BATCH = 2_000
TRANSACTION_BYTES = 8 * 1024 * 1024
"""A batch of enqueues, claims, settles, logs or prunes ends when its payloads reach this size."""
COMMIT_OPS = 2_000
CLAIM_BATCH = 500
LIMITS_BATCH = 100
"""How many limits of tasks one claim looks at; the next one begins behind the last."""
TICK_BATCH = 1_000
FIRE_BATCH = 200
LATE_BATCH = 20
"""How many schedules that are on time, and how many that are late, one look reads."""
LOOK_INSTANTS = 50_000
LOOK_ROWS = 1_000
LOOK_BYTES = 8 * 1024 * 1024
"""How many instants one look computes, and the rows and bytes of arguments that it writes."""
RELAY_BATCH = 500
RELAY_STALE_SECONDS = 60
RELAY_LONGEST_SECONDS = 3600
"""How long a run that was handed over and not claimed waits to be so again: at first, at most."""
RELAY_FULL_SECONDS = 5
"""How long one waits that came while its queue's limit was full."""
SUMMARY_RUNS = 10_000
"""Of how many finished runs, the newest, a summary tells."""
FEW_TAGGED = 200
"""Up to so many runs of one tag are looked up one by one; of more there are some on every page."""
COUNT_FOLD_ROWS = 5_000
"""How many tallies are added up at once, of each span."""
SCAN_RUNS = 10_000
"""Among how many runs, the newest, a search looks that no index answers."""
RUNNING_RUNS = 100_000
"""Among how many running runs a list of them looks: more than there are slots of workers."""
SKEW_SECONDS = 60
"""How far the clocks of those who make runs may be apart for a list to know where it ends."""
LOOK_RUNS = 200
LOOKS = 25
"""How many runs a search for arguments or errors reads at once, and how often."""
GROUPS = 500
"""How many groups of dead letters a list of them looks at."""
JUMPS = 500
"""Of how many lanes and priorities of a queue the oldest runs are looked at."""
SEARCH_SECONDS = 2.0
"""For how long it does so; then it answers with what it has found, and where it continues."""
FILTER_CHARACTERS = 1_000
FILTER_TERMS = 20
"""How long a filter of runs may be, and how many terms it may have."""
COUNT_CAP = 10_000
"""Nobody counts further; the rest is "10,000+"."""
DEAD_COUNT_CAP = 1_000
"""The same for all dead letters together, which every page of the dashboard counts."""
COUNT_LOOKS = 60
"""How many pages are read to count what no counter tells; enough for the cap."""
COUNT_SECONDS = 2.0
"""For how long that is done; then the rest is "and more"."""
PAGE = 200
PAGE_DEFAULT = 50

DELAY_SECONDS = 10 * 365 * 86_400
"""A delay beyond ten years is a unit mistake (milliseconds for seconds), not a plan."""

INTERVAL_SECONDS = 366 * 86_400
CRON_CHARACTERS = 500
LATEST_YEAR = 9_000
CATCH_UP = 1_000
"""How many missed instants of a schedule may be caught up, and how many may wait in turn."""
PLAN_INSTANTS = 10_000
"""How many instants of a schedule one look accounts for."""
SINGLE_FIRINGS = 100
"""Of those that are skipped together, so many have a row each."""

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
"""How long `add_task` waits for a worker that was called dead, or not heard of, to go on."""
ADDING_THREADS = 16
"""How many threads of a TaskManager add tasks at once; the rest waits for one of them."""
OBSERVERS_SECONDS = 5.0
"""For how long observers may keep an application from ending, and for how long once cancelled."""
DEAD_LETTER_TTL_SECONDS = 30 * 86_400
DEAD_LETTER_LEASE_SECONDS = 60.0
"""How long a letter stays with somebody who died while sending it again."""
DEAD_LETTER_WRITE_SECONDS = 10.0
"""For how long it is tried to write a letter that nobody else can write."""
DEAD_LETTER_RETRY_FAILURES = 3
"""After so many letters in a row that the engine did not take, it is taken to be away."""
RESERVATION_SECONDS = 3600.0
FORGET_BATCH = 4
"""How many keys whose time is over go with each that ends, so that they cannot pile up."""
REDIS_SECONDS = 5.0
"""How long a Redis may take to answer."""
REDIS_GRACE_SECONDS = 86_400.0
"""How long after its lease a held key stays in Redis, so that a late holder can still finish."""

SQLITE_TRANSACTION_SECONDS = 5.0
"""How long a body's transaction may keep every other writer waiting."""
POSTGRES_TRANSACTION_SECONDS = 60.0

LEASE_SECONDS = 15.0
BEAT_SECONDS = 5.0
LEASE_MARGIN_SECONDS = 2.0
GRACE_SECONDS = 25.0
STALLED_SECONDS = 300.0
"""For how long a thread of a worker's engine may be in one turn; each wait for the store in it is
far shorter."""
UNSERVED_SECONDS = 60.0
"""For how long a run may be ready while a worker that serves it runs nothing, in `duly health`."""
WATCHERS = 8
"""How many workers read the beats of all others; with this many or fewer, all do."""
LEFT_FILES_SECONDS = 7 * 86_400
"""How long the files of a worker stay on its host if its runs were recovered on another one."""
POLL_SECONDS = 1.0
LOOK_SECONDS = 0.5
RECHECK_SECONDS = 30.0
"""How long a run may wait for what is there, if who brought it died before saying so."""
RECHECK_LONGEST_SECONDS = 600.0
"""The same on PostgreSQL, if the server's row counters missed the end of the run."""
UNCLAIMED_SECONDS = 5.0
"""How long who waits for a run waits in silence while nobody claims it."""
KEY_TTL_SECONDS = 24 * 3600
RETENTION_SECONDS = 7 * 86_400.0
DEAD_RETENTION_SECONDS = 30 * 86_400.0
ACT_RETENTION_SECONDS = 365 * 86_400.0
FOREVER_SECONDS = 1_000 * 365 * 86_400
"""What is kept for ever is kept for a thousand years."""
KEPT_LOOK_SECONDS = 30 * 86_400
"""How often to look whether a run is still to be kept, at the least; its task may say otherwise."""
CUT_OVER_BATCH = 200
"""How many rows of another system's tables one transaction moves."""
CUT_OVER_LATE_SECONDS = 86_400
"""A one-time task of the async scheduler that is later than this is not moved: it was missed."""

PARENT_LOOK_SECONDS = 86_400
"""How often to look whether the run that waited for a finished child still needs its result."""

TOKEN_BITS = 128
"""The weakest token: 22 letters and digits, or 32 hexadecimal ones."""
SESSION_SECONDS = 12 * 3600
LOGIN_FAILURES = 10
LOGIN_SECONDS = 60.0
"""After this many wrong tries within that time, a client is refused and a name is answered late."""
LOGIN_FAILURES_OF_ALL = 100
"""After this many wrong tries within that time, from whatever clients, all are answered late."""
LOGIN_DELAY_SECONDS = 1.0
LOGIN_CLIENTS = 4_096
"""How many clients, and how many names, are remembered with their wrong tries."""
PASSWORD_LENGTH = 12
PASSWORD_CHARACTERS = 5
"""How many of its characters must differ."""
PAGE_SECONDS = 5.0
"""How long all that a page reads may take; a page that takes longer says so instead."""
READS_OF_ONE = 2
"""How many requests of one viewer read from the database at the same time: half of the connections
that a process reads with on PostgreSQL."""
READ_WAIT_SECONDS = 10.0
"""How long further requests of that viewer wait before they are refused."""
LIVE_STREAMS = 64
"""How many pages are kept up to date at once; further ones are as old as their last reload."""
LIVE_STREAMS_OF_ONE = 16
"""How many of them may belong to one viewer."""
LIVE_SECONDS = 1.0
LIVE_SEND_SECONDS = 30.0
"""A page that takes no update for so long is taken to be closed: behind WSGI nobody says so."""
LIVE_LONGEST_SECONDS = 300.0
"""After that a page asks for its updates again, and is asked who it is."""
BULK_LEASE_SECONDS = 15.0
"""After this long without a sign of its process, another one continues an act on many runs."""
BULK_LOOK_SECONDS = 5.0
"""How often a server process looks for such acts, at most."""
BULK_TRIES = 10
BULK_PAUSE_SECONDS = 3.0
"""How often, and after which pause, an act is tried again while the database is away."""
BULK_RETENTION_SECONDS = 30 * 86_400.0
"""How long an act on many runs is shown after its end."""
