"""`duly dev`: begins anew when the code changes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duly.cli import dev

DULY = str(Path(sys.executable).with_name("duly"))
SHOP = "from duly import Duly\napp = Duly()\n"


def test_files_of_others_do_not_count(tmp_path):
    for name in ("shop.py", "notes.txt", ".venv/hidden.py", "pkg/__pycache__/x.py", "pkg/inner.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    found = dev._stamps(tmp_path)

    assert {Path(name).name for name in found} == {"shop.py", "inner.py"}


def test_dev_asks_for_an_application(folder, cli):
    assert cli("dev").exit_code == 2
    assert cli("dev", "orders app").exit_code == 2


@pytest.mark.process
def test_a_changed_file_starts_the_worker_anew(tmp_path):
    (tmp_path / "shop.py").write_text("raise SystemExit\n")
    environment = {name: text for name, text in os.environ.items() if name[:5] != "DULY_"}
    # What runs in the background is often told to ignore Ctrl-C, and so is all that it starts.
    process = subprocess.Popen(
        ["/usr/bin/env", "--default-signal=INT", DULY, "dev", "shop:app"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )

    def wait_for(words: str) -> None:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if words in line:
                return
        pytest.fail(f"it never said {words!r}: {lines}")

    try:
        wait_for("waiting for the code to change")
        (tmp_path / "shop.py").write_text(SHOP)
        wait_for("the code has changed")
        wait_for(f"duly worker: shop:app on {tmp_path / 'duly.db'}")
        wait_for("started on")
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
