"""Makes text from anywhere harmless to a terminal and to a log of one line per entry."""


def clean(text: str) -> str:
    r"""Return one line in which nothing moves a cursor, sets a colour or turns the direction.

    Control characters of both sets, line breaks, and the format characters that order bidirectional
    text are all unprintable to Python; they come out as `\x1b`, `\u202e` and the like.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def clean_lines(text: str) -> str:
    """Return several lines, each made harmless; tabs become blanks."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))
