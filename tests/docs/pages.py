"""The pages of the documentation and their code blocks."""

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its kind (`python`, `sh`, …), its text, and its first line."""

    kind: str
    text: str
    place: str


def name_of(page: Path) -> str:
    """Return the path of a page in the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    text = page.read_text()
    return [
        Block(found[1], found[2], f"{name_of(page)}:{text.count(chr(10), 0, found.start()) + 1}")
        for found in _FENCE.finditer(text)
    ]


def blocks_of(*kinds: str) -> list[Block]:
    """Return the blocks of these kinds from all pages."""
    return [block for page in PAGES for block in blocks(page) if block.kind in kinds]
