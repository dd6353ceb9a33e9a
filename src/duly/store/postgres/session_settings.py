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
UPKEEP: Mapping[str, str] = {
    **HOT,
    "lock_timeout": "5s",
}
KEYED: Mapping[str, str] = {
    **HOT,
    # A caller's open transaction may hold the same key for any time. Other writes share this
    # connection, so a write that needs the key waits elsewhere.
    "lock_timeout": "20ms",
}
HINTS: Mapping[str, str] = {"synchronous_commit": "off"}
"""For notifications, whose loss in a crash of the server does no harm."""
