"""The settings of our sessions, by what they are used for."""

from collections.abc import Mapping

FROZEN = "10s"

HOT: Mapping[str, str] = {
    # A plan is made once and kept while the tables grow, so it must not read a table as a whole,
    # which is cheap only on the first day, nor gather and sort what an index has in order. The
    # statements see to the rest. Forbidden plans look so dear that they would be compiled: no jit.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "default_transaction_isolation": "read committed",
    # A process that is frozen in the middle must not keep others from recovering its runs: neither
    # between two statements, nor with an answer that it does not read.
    "idle_in_transaction_session_timeout": FROZEN,
    "tcp_user_timeout": FROZEN,
}
UPKEEP: Mapping[str, str] = {
    **HOT,
    "lock_timeout": "5s",
}
KEYED: Mapping[str, str] = {
    **HOT,
    # An open transaction of a caller may be taking the same key. Its length is the caller's, and
    # others share this connection: whoever needs the key waits elsewhere.
    "lock_timeout": "20ms",
}
HINTS: Mapping[str, str] = {"synchronous_commit": "off"}
"""For notifications, which nobody misses after a crash of the server."""
