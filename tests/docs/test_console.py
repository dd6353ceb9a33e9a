"""The `console` blocks that show commands which read a new database: they print what is shown."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of
from tests.docs.test_tutorial import missing_line, shell

NEED_ONLY_A_DATABASE = ("duly audit", "duly doctor", "duly health")
NUMBER = re.compile(r"\d[\d,.]*")
BLOCKS = [
    block for block in blocks_of("console") if block.text[2:].startswith(NEED_ONLY_A_DATABASE)
]


@pytest.mark.process
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_commands_print_what_a_block_shows(block, tmp_path):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("DULY_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment["DULY_URL"] = "sqlite:///shop.db"
    lines = block.text.splitlines(keepends=True)
    commands = "".join(line.removeprefix("$ ") for line in lines if line.startswith("$ "))
    shown = "".join(line for line in lines if not line.startswith("$ "))

    with shell(tmp_path, environment) as terminal:
        terminal.paste("duly db migrate\n")
        printed = terminal.paste(commands)

    # Versions and counts are those of another machine.
    assert missing_line(NUMBER.sub("…", shown), printed) is None, printed
