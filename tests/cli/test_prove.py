"""`duly prove`: which scenarios it runs, and what it reports. tests/prove runs the scenarios."""

import json

import pytest

from duly_prove import prove_command
from duly_prove.evidence import Evidence

COUNTS = ("enqueued", "lost", "doubled", "stale_writes")
INSTANTS = ("instants_due", "instants_missed", "extra_firings")
URL = "postgresql://ann@127.0.0.1:1/shop"


@pytest.fixture
def proved(monkeypatch) -> list[tuple[str, str | None]]:
    """The scenarios that would have run, with their databases. `limits` is broken."""
    calls = []

    def prove(name, url, _tell, *, scale, seed, again):
        calls.append((name, url))
        broken = ["limit: 3 of 2 places"] if name == "limits" else []
        document = {
            "verdict": "broken" if broken else "holds",
            "replay": again or f"duly prove --seed {seed} --scale {scale:g}",
            "strikes": {"made": 1},
            "counts": dict.fromkeys([*COUNTS, *INSTANTS], 0),
            "measured": {"seconds": 1.0},
            "broken": broken,
            "journals": "somewhere",
        }
        database = "sqlite" if url is None else "postgres-15"
        return Evidence(name, database, not broken, document, document["replay"])

    monkeypatch.setattr(prove_command, "_prove", prove)
    return calls


def test_the_proof_writes_a_document_for_each_scenario_and_database(folder, cli, proved):
    result = cli("prove", "--only", "kills", "--only", "locks", "--url", URL, "--sqlite")

    assert result.exit_code == 0
    assert proved == [(name, url) for url in (None, URL) for name in ("kills", "locks")]
    written = {file.name for file in (folder / "docs" / "evidence").iterdir()}
    assert written == {
        f"{name}-{at}.json" for name in ("kills", "locks") for at in ("sqlite", "postgres-15")
    }
    assert "kills on postgres-15: holds" in result.stderr


def test_the_proof_uses_sqlite_alone_without_an_address(folder, cli, proved, monkeypatch):
    monkeypatch.setenv("DULY_URL", URL)

    cli("prove", "--only", "kills")
    cli("prove", "--only", "kills", "--sqlite")

    assert proved == [("kills", None)] * 2


def test_a_broken_invariant_is_an_exit_status(folder, cli, proved):
    shown = cli("prove", "--only", "limits", "--out", "here")
    told = cli("prove", "--only", "limits", "--out", "here", "--json", "--quiet")

    assert (shown.exit_code, told.exit_code) == (1, 1)
    assert "limit: 3 of 2 places" in shown.stderr
    assert "again: duly prove --seed 1 --scale 1" in shown.stderr
    (document,) = json.loads(told.stdout)["evidence"]
    assert document == json.loads((folder / "here" / "limits-sqlite.json").read_text())
    assert told.stderr == ""


def test_every_scenario_runs_by_default(folder, cli, proved):
    assert cli("prove").exit_code == 1
    assert [name for name, _ in proved] == list(prove_command.SCENARIOS)
