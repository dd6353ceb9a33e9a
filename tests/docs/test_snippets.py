"""Every Python snippet of README and docs runs. The snippets of a page form one program."""

import os
import re
from itertools import pairwise

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, blocks, name_of
from tests.docs.test_tutorial import missing_line
from tests.servers.warm import warm

IMPORTS = (
    "duly.app",
    "duly.worker.embedded_worker",
    "duly.steps.functions",
    "duly.store.sqlite.store",
    "fastapi",
)
REDIS = "REDIS_URL"
"""A page that reads this environment variable needs a Redis."""
INTERNALS = "internals"
"""The folder of pages for contributors, which the site leaves out."""
TESTS = "# test_"
"""A Python block contains this text if pytest runs it, so that the program prints nothing."""
AT_ONCE = "before you run them again"
"""A page contains this text if its database must be deleted between two runs."""


def outputs(page):
    """Return the `text` blocks that show what the Python blocks before them print."""
    return [
        after.text
        for before, after in pairwise(blocks(page))
        if before.kind == "python" and after.kind == "text" and TESTS not in before.text
    ]


def snippets(page):
    return "\n".join(block.text for block in blocks(page) if block.kind == "python")


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name_of)
def test_the_snippets_of_a_page_run(page, tmp_path, request):
    program = tmp_path / "shop.py"
    program.write_text(snippets(page))
    environment = dict(os.environ)
    if REDIS in program.read_text():
        environment[REDIS] = request.getfixturevalue("redis_url")

    # The database outlives the program, and readers run a page again in the same folder.
    times = 1 if AT_ONCE in page.read_text() else 2
    log = tmp_path / "log.txt"
    for _ in range(times):
        running = warm(*IMPORTS).start(
            [str(program)], log=log, folder=tmp_path, environment=environment
        )
        assert running.wait(50) == 0, log.read_text()
        assert "can lose commits" not in log.read_text()
        for expected in outputs(page):
            assert missing_line(expected, log.read_text()) is None, log.read_text()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_have_a_target(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        led_to = page.parent / target if target else page
        assert led_to.exists(), target
        assert not anchor or anchor in anchors(led_to), f"{target}#{anchor}"


def anchors(page):
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", each).lower()) for each in headings}


def test_every_page_is_in_the_menu_of_the_site():
    menu = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r": (\S+\.md)$", menu, re.MULTILINE)
    pages = {page.relative_to(DOCS) for page in DOCS.rglob("*.md")}

    assert sorted(listed) == sorted(str(page) for page in pages if page.parts[0] != INTERNALS)


def test_pages_of_internals_are_linked_only_for_contributors():
    linking = {name_of(page) for page in PAGES if f"{INTERNALS}/" in page.read_text()}

    assert linking == {"ARCHITECTURE.md", "CONTRIBUTING.md"}
