"""The threat model names every trusted party and only existing tests."""

import re

import pytest

from tests.docs.pages import ROOT
from tests.docs.test_guarantees import names_in

PAGE = (ROOT / "SECURITY.md").read_text()
MODEL = PAGE.partition("## Threat model")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    "party",
    ["database", "worker", "Redis", "dashboard", "duly_router", "TaskAdmin", "HTTP idempotency",
     "carrier", "users of the machine", "environment"],
)  # fmt: skip
def test_the_threat_model_names_every_trusted_party(party):
    rows = [line.split(" | ")[0] for line in MODEL.splitlines() if line.startswith("| ")]

    assert [row for row in rows if party in row] != []


def test_every_test_that_the_threat_model_names_exists():
    named = re.findall(r"`(tests/[^`:]+)(?:::([^`]+))?`", MODEL)

    assert [file for file, _ in named if not (ROOT / file).exists()] == []
    assert [(file, name) for file, name in named if name and name not in names_in(file)] == []
    assert len(named) > 30
