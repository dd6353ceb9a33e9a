"""`make prove`: the scenarios in full, on SQLite and on every PostgreSQL that can be started here.

Arguments are those of `python -m duly.prove`; with --url or --sqlite among them nothing is started.
"""

import os
import subprocess
import sys
from contextlib import ExitStack

from tests.servers.kinds import KINDS, POSTGRES_KINDS, POSTGRES_URL_VARIABLE
from tests.servers.postgres import PostgresEndpoint, PostgresServer

PROVE = [sys.executable, "-m", "duly.prove"]
AGAIN = ["--again", "python -m tests.prove"]


def main(arguments: list[str]) -> int:
    """Prove on one database after the other; return whether something was broken."""
    if any(argument.startswith(("--url", "--sqlite", "--help")) for argument in arguments):
        return subprocess.run([*PROVE, *arguments], check=False).returncode
    broken = subprocess.run([*PROVE, "--sqlite", *AGAIN, *arguments], check=False).returncode
    for name in POSTGRES_KINDS:
        broken |= _prove_on_postgres(name, arguments)
    return broken


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
