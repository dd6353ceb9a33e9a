"""`make prove`: the full scenarios, on SQLite and on every PostgreSQL available here.

The arguments are those of `duly prove`. With --url or --sqlite, no server is started.
Without arguments, other engines and web servers are killed too. With --engines, only those run.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.integrations.evidence import FOLDER_VARIABLE, KILLS_VARIABLE
from tests.servers.kinds import KINDS, POSTGRES_KINDS, POSTGRES_URL_VARIABLE
from tests.servers.postgres import PostgresEndpoint, PostgresServer

ROOT = Path(__file__).parents[2]
ENGINE_KILLS = 100
OLDEST_POSTGRES_VARIABLE = "DULY_TEST_OLDEST_POSTGRES"
PROVE = [sys.executable, "-m", "duly", "prove"]
AGAIN = ["--again", "python -m tests.prove"]


def main(arguments: list[str]) -> int:
    """Prove on one database after the other. Return a nonzero status if an invariant was broken."""
    if arguments == ["--engines"]:
        return prove_with_engines(arguments)
    if any(argument.startswith(("--url", "--sqlite", "--help")) for argument in arguments):
        return subprocess.run([*PROVE, *arguments], check=False).returncode
    broken = subprocess.run([*PROVE, "--sqlite", *AGAIN, *arguments], check=False).returncode
    for name in POSTGRES_KINDS:
        broken |= _prove_on_postgres(name, arguments)
    return broken | prove_with_engines(arguments)


def prove_with_engines(arguments: list[str]) -> int:
    """Run the kill tests of other engines and of web servers in full."""
    if arguments and "--engines" not in arguments:
        return 0
    folder = ROOT / "docs" / "evidence"
    environment = os.environ | {
        KILLS_VARIABLE: str(ENGINE_KILLS),
        FOLDER_VARIABLE: str(folder),
        OLDEST_POSTGRES_VARIABLE: "1",
    }
    tests = sorted((ROOT / "tests" / "integrations").rglob("test_*kills.py"))
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly"]
    # Each test has its own deadline, which is longer than the deadline of the suite.
    command += ["-o", "faulthandler_timeout=0", *map(str, tests)]
    return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def _prove_on_postgres(name: str, arguments: list[str]) -> int:
    kind = KINDS[name]
    if kind.missing is not None:
        sys.stderr.write(f"not on {name}: {kind.missing}\n")
        return 0
    with ExitStack() as stack:
        if kind.binaries is None:
            server = PostgresEndpoint(os.environ[POSTGRES_URL_VARIABLE])
        else:
            server = stack.enter_context(PostgresServer(kind.binaries))
        url = server.create_database()
        stack.callback(server.drop_database, url)
        command = [*PROVE, "--url", url, *AGAIN, *arguments]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
