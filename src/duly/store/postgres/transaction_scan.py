"""Finds statements in the text of a script that would end or leave its transaction.

PostgreSQL itself refuses them inside functions and `DO`, but it would execute them in a script.
"""

import re
from collections.abc import Iterator

_ENDING = re.compile(rb"\b(?:COMMIT|ROLLBACK|END|ABORT|BEGIN|START|PREPARE)\b", re.IGNORECASE)
"""A quick check: a script without any of these words cannot end its transaction."""

_TOKEN = re.compile(
    rb"""
      --[^\r\n]*
    | /\*
    | \b[eE]'(?:[^'\\]+|\\.|'')*'
    | '[^']*'
    | "[^"]*"
    | \$(?P<tag>(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?)\$ .*? (?:\$(?P=tag)\$ | \Z)
    | (?P<word> [A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]* )
    | (?P<mark> [;()] )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(rb"/\*|\*/")

_LOOKED_AT = 5
"""How many leading words identify a statement: `CREATE OR REPLACE FUNCTION f`."""


def find_transaction_end(script: bytes) -> str | None:
    """Return the first words of a statement that would end or leave its transaction, if any."""
    if _ENDING.search(script) is None:
        return None
    words: list[bytes] = []
    parentheses = blocks = 0
    for kind, text in _tokens(script):
        if kind == "mark":
            parentheses = max(0, parentheses + {b"(": 1, b")": -1, b";": 0}[text])
            # Semicolons inside the actions of a rule or the body of a function end no statement.
            if text == b";" and not parentheses and not blocks:
                if _ends(words):
                    break
                words = []
            continue
        word = text.upper()
        if len(words) < _LOOKED_AT:
            words.append(word)
        if not parentheses and _defines_routine(words):
            blocks = _depth(blocks, word)
    return b" ".join(words[:2]).decode("ascii", "replace") if _ends(words) else None


def _ends(words: list[bytes]) -> bool:
    match words:
        case [b"COMMIT" | b"END" | b"ABORT" | b"BEGIN", *_]:
            return True
        case [b"START" | b"PREPARE", b"TRANSACTION", *_]:
            return True
        case [b"ROLLBACK", b"TO", *_] | [b"ROLLBACK", b"WORK" | b"TRANSACTION", b"TO", *_]:
            return False  # To a savepoint, which belongs to the body.
        case [b"ROLLBACK", *_]:
            return True
    return False


def _defines_routine(words: list[bytes]) -> bool:
    match words:
        case [b"CREATE", b"FUNCTION" | b"PROCEDURE", *_]:
            return True
        case [b"CREATE", b"OR", b"REPLACE", b"FUNCTION" | b"PROCEDURE", *_]:
            return True
    return False


def _depth(blocks: int, word: bytes) -> int:
    """Return how many blocks of a body in plain SQL (`BEGIN ATOMIC … END`) are open."""
    if word == b"BEGIN" or (word == b"CASE" and blocks):
        return blocks + 1
    return blocks - 1 if word == b"END" and blocks else blocks


def _tokens(script: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the words and marks outside of string literals, quoted names and comments."""
    at = 0
    while (found := _TOKEN.search(script, at)) is not None:
        at = found.end()
        if found[0] == b"/*":
            at = _after_comment(script, at)
        elif found["word"] or found["mark"]:
            yield "word" if found["word"] else "mark", found[0]


def _after_comment(script: bytes, at: int) -> int:
    """Return the end of a comment. PostgreSQL's comments may be nested."""
    depth = 1
    while depth and (found := _COMMENT.search(script, at)) is not None:
        depth += 1 if found[0] == b"/*" else -1
        at = found.end()
    return at if not depth else len(script)
