"""Makes arbitrary text safe for a terminal and for a log with one line per entry."""


def clean(text: str) -> str:
    r"""Return one line that cannot move a cursor, set a colour or change the text direction.

    Python treats control characters of both sets, line breaks, and the format characters that order
    bidirectional text as unprintable. They are replaced by escapes such as `\x1b` and `\u202e`.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def clean_lines(text: str) -> str:
    """Return several lines, each made safe. Tabs become spaces."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))
