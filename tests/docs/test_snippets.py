"""Every Python snippet of README and docs runs; the snippets of one page are one program."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.pages import PAGES, blocks, name_of

REDIS = "REDIS_URL"
"""A page that asks the environment for it needs a Redis."""


def snippets(page):
    return "\n".join(block.text for block in blocks(page) if block.kind == "python")


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name_of)
def test_the_snippets_of_a_page_run(page, tmp_path, request):
    program = tmp_path / "shop.py"
    program.write_text(snippets(page))
    environment = dict(os.environ)
    if REDIS in program.read_text():
        environment[REDIS] = request.getfixturevalue("redis_url")

    # What a guard remembers outlives the program, and readers try it again in the same folder.
    times = 2 if "guard" in program.read_text() else 1
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
