"""Measures the time of `import duly` in fresh interpreters, and checks which modules it loads."""

import json
import subprocess
import sys

from benchmarks.processes import ROOT, as_installed
from benchmarks.report import Figure, at_most, interleave
from benchmarks.sizes import Sizes

NEEDED = ("asyncio", "sqlite3", "zoneinfo")
"""The parts of the standard library that duly cannot do without."""
DULY = "duly.app"
"""The module that `from duly import Duly` loads. `import duly` alone loads nothing yet."""
LEFT_OUT = ("psycopg", "click", "rich", "starlette", "redis", "django")

_PROGRAM = """
import json, sys, time
began = time.process_time()
import {modules}
seconds = time.process_time() - began
print(json.dumps([seconds, [name for name in {looked_for!r} if name in sys.modules]]))
"""


def measure(sizes: Sizes) -> list[Figure]:
    """Import duly and what it needs in turn, each time in a new interpreter."""
    import_once(DULY, *NEEDED)  # The first one writes byte code and fills the disk's cache.
    duly, needed = interleave(
        sizes.imports,
        bare=lambda: import_once(*NEEDED)[0] * 1e3,
        duly=lambda: import_once(DULY)[0] * 1e3,
    )
    found = import_once(DULY)[1]
    note = f"against import {', '.join(NEEDED)}"
    return [
        Figure("import duly", "", "ms", duly, needed, (at_most(2, "ratio"),), note),
        Figure(
            "modules it should leave out",
            "",
            "loaded",
            [len(found)],
            (),
            (at_most(0),),
            ", ".join(found) or f"none of {', '.join(LEFT_OUT)}",
        ),
    ]


def import_once(*modules: str) -> tuple[float, list[str]]:
    """Return the CPU seconds of an import in a new interpreter, and the unwanted modules it loaded.

    CPU time is measured because other processes may keep the processor busy. The start of the
    interpreter is not included.
    """
    program = _PROGRAM.format(modules=", ".join(modules), looked_for=LEFT_OUT)
    done = subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=as_installed(),
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, found = json.loads(done.stdout)
    return seconds, found
