"""The settings of the engine's sessions, by purpose."""

from collections.abc import Mapping

FROZEN = "10s"

HOT: Mapping[str, str] = {
    # A plan is made once and kept while the tables grow. So it must not read a whole table, which
    # is cheap only while the table is small, nor collect and sort rows that an index has in order.
    # The form of the statements ensures the rest. Forbidden plans have high costs, so the server
    # would compile them: therefore jit is off.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
    # A process that freezes in a transaction must not keep others from recovering its runs. It may
    # freeze between two statements, or before it reads an answer.
    "idle_in_transaction_session_timeout": FROZEN,
    "tcp_user_timeout": FROZEN,
}
WORK: Mapping[str, str] = {
    **HOT,
    # Other writes wait meanwhile.
    "lock_timeout": "1s",
}
TRY_MILLISECONDS = 2
"""How long a write waits for a name that a caller's transaction may hold, such as a key. If that
transaction is open for longer, the write is tried again later, and other writes go first."""
SERVICE_WAIT_MILLISECONDS = 50
"""How long a service waits for a lock. It tries again later, and callers wait meanwhile. This is
shorter than the time after which a batch is cut off, since a smaller one would wait, too."""
