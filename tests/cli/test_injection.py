"""Text of tasks, errors and arguments cannot forge a log line or control the terminal."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import answer

DULY = str(Path(sys.executable).with_name("duly"))

CORPUS = (
    "a\n2030-01-01T00:00:00.000Z INFO forged",
    "a\r2030-01-01T00:00:00.000Z INFO forged",
    "a\r\n2030-01-01T00:00:00.000Z INFO forged",
    "a\x0b2030-01-01T00:00:00.000Z INFO forged",
    "a\x852030-01-01T00:00:00.000Z INFO forged",
    "a\u20282030-01-01T00:00:00.000Z INFO forged",
    'a"}\n{"level": "info", "message": "forged"}',
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\x9b31m",
    "\u202egnp.exe",
    "\u2066over\u2069",
    "\x08\x08\x08ok",
    "\x7f",
    "[bold red]markup[/]",
)
ENTRY = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR) ")

HOSTILE = """
import logging

from duly import Duly, current

app = Duly()


@app.task
def say(text: str) -> None:
    current().log.warning(text)
    logging.getLogger("shop").warning("%s", text)
    try:
        raise KeyError(text)
    except KeyError:
        logging.getLogger("shop").exception("it says %s", text)
    raise ConnectionError(text)
"""


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_lists_show_hostile_text_as_text(app, cli, run_of, drain):
    ids = [run_of("send", text).id for text in CORPUS]
    drain()

    shown = {
        "runs list": cli("runs", "list").stdout,
        "runs tail": cli("runs", "tail", "-n", "100", "--for", "0s").stdout,
        "dead list": cli("dead", "list").stdout,
    }
    groups = cli("dead", "groups").stdout
    each = [cli("runs", "show", run_id).stdout for run_id in ids]

    for what, text in shown.items():
        assert len(text.splitlines()) == len(CORPUS) + (what != "runs tail"), what
        assert is_harmless(text), what
    assert is_harmless(groups)
    assert all(is_harmless(text) for text in each)
    # Only tracebacks span several lines, and each line is indented.
    assert not any(re.match(ENTRY, line) for text in each for line in text.splitlines())
    assert "[bold red]markup[/]" in shown["runs list"]


# The output does not depend on the store.
@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
@pytest.mark.parametrize("told_by", ["--json", "text"])
def test_a_worker_writes_one_harmless_line_per_entry(folder, url, told_by, cli):
    (folder / "hostile.py").write_text(HOSTILE)
    environment = os.environ | {"DULY_URL": url, "DULY_APP": "hostile:app"}
    for text in CORPUS:
        cli("enqueue", "say", json.dumps([text]), "--app", "hostile:app", "--url", url)

    worked = subprocess.run(
        [DULY, "worker", "--drain", *(["--json"] if told_by == "--json" else [])],
        env=environment,
        check=False,
        capture_output=True,
        timeout=50,
    )

    assert worked.returncode == 0, worked.stderr
    told = worked.stderr.decode()
    if told_by == "text":
        assert is_harmless(told)
        _check_text(told.splitlines())
    else:
        _check_json([json.loads(line) for line in told.splitlines()])
    (failed,) = answer(cli("dead", "list", "--limit", "1", "--json", "--url", url))["runs"]
    assert failed["error"] == f"ConnectionError: {CORPUS[-1]}"


def _check_text(lines: list[str]) -> None:
    entries = [line for line in lines[1:] if not line.startswith("    ")]
    assert all(ENTRY.match(line) for line in entries), entries
    assert sum(" failed (raised), attempt 1, " in line for line in entries) == len(CORPUS)
    assert not any(re.match(r"\S+ \S+ INFO forged", line) for line in entries)


def _check_json(entries: list[dict[str, object]]) -> None:
    ended = [entry for entry in entries if "outcome" in entry]
    assert {entry["error"] for entry in ended} == {f"ConnectionError: {text}" for text in CORPUS}
    for entry in ended:
        assert entry["run_id"]
        about = [entry[name] for name in ("task", "queue", "attempt", "outcome", "state")]
        assert about == ["hostile:say", "default", 1, "raised", "failed"]
    of_runs = [entry for entry in entries if entry["logger"] == "duly.run"]
    assert {entry["run_id"] for entry in of_runs} == {entry["run_id"] for entry in ended}
    said = [entry for entry in entries if entry["logger"] == "shop" and "traceback" not in entry]
    assert {entry["message"] for entry in said} == set(CORPUS)
    assert str(entries[0]["message"]).startswith("duly worker: hostile:app on ")
