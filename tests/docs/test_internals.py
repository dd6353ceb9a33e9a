"""The pages for contributors name only existing files."""

import re

import pytest

from tests.docs.pages import DOCS, ROOT, name_of

PAGES = [ROOT / "ARCHITECTURE.md", *sorted((DOCS / "internals").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_a_page_names_exists(page):
    named = set(re.findall(r"`([\w/*]+\.(?:py|sql|js))`", page.read_text()))
    found = {
        name for name in named for folder in (ROOT, ROOT / "src/duly") if any(folder.glob(name))
    }

    assert named - found == set()
    assert named != set()
