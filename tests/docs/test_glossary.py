"""The glossary is short and contains no internal terms."""

import re

from tests.docs.pages import DOCS, ROOT

TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)

WORDS = TERM.findall((DOCS / "glossary.md").read_text())
INTERNAL_WORDS = TERM.findall(
    (ROOT / "ARCHITECTURE.md").read_text().partition("\n## Internal terms\n")[2]
)


def test_the_glossary_has_at_most_25_words():
    assert 15 < len(WORDS) <= 25
    assert len(set(WORDS)) == len(WORDS)


def test_no_word_of_the_glossary_is_also_explained_as_an_internal_term():
    assert len(INTERNAL_WORDS) > 25
    assert [word for word in INTERNAL_WORDS if word in WORDS] == []
