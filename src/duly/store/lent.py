"""What is said of connections that bodies have for the length of their transaction."""

ENDS_WITH_ITS_RUN = (
    "this connection's transaction ends with its run: neither begin, commit nor close it, nor roll "
    "it back; raise an exception to undo what it wrote, and undo a part of it by a savepoint"
)
IS_OVER = (
    "the transaction that this connection was lent for has ended; ask duly.current() for it in "
    "every body anew, and end threads that use it before the body ends"
)
