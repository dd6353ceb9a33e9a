"""Measures figures on databases, prints them, and writes them to a file on request."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks.databases import Database
from benchmarks.databases.postgres import Postgres
from benchmarks.databases.sqlite import Sqlite
from benchmarks.figures import NAMES, ON_A_DATABASE, WITHOUT_A_DATABASE
from benchmarks.report import Figure, Machine, table, write_json
from benchmarks.sizes import FULL, QUICK, Sizes


def main() -> int:
    """Measure and print the figures. Return exit status 1 if a target was missed."""
    arguments = _parser().parse_args()
    # SIGTERM also cleans up servers, workers and folders.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sizes = QUICK if arguments.quick else FULL
    if arguments.rounds is not None:
        sizes = replace(sizes, rounds=arguments.rounds)
    wanted = arguments.only or NAMES
    machine = Machine.here_and_now()
    with ExitStack() as stack:
        databases = list(_databases(arguments, stack, wanted))
        print(_heading(machine, databases))
        figures = list(_measured(wanted, databases, sizes))
    print()
    print(table(figures))
    if arguments.json is not None:
        stores = {database.name: database.described for database in databases}
        write_json(arguments.json, machine, stores, figures)
    if arguments.quick:
        print("\nA quick run shows that everything works; its figures mean little.")
        return 0
    return int(any(figure.passed is False for figure in figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=NAMES, help="may be given repeatedly")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument(
        "--journal",
        choices=("wal", "rollback", "both"),
        default="wal",
        help="journal mode of SQLite: WAL as in duly's own files, or rollback as in applications",
    )
    parser.add_argument(
        "--postgres-version", type=int, metavar="MAJOR", help="default: the newest one found"
    )
    parser.add_argument("--rounds", type=int, help=f"default: {FULL.rounds}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--quick", action="store_true", help="tiny counts, to check that it works")
    return parser


def _databases(
    arguments: argparse.Namespace, stack: ExitStack, wanted: tuple[str, ...]
) -> Iterator[Database]:
    if not set(wanted) & set(ON_A_DATABASE):
        return
    if arguments.store in {"sqlite", "both"}:
        if arguments.journal in {"wal", "both"}:
            yield Sqlite()
        if arguments.journal in {"rollback", "both"}:
            yield Sqlite(rollback_journal=True)
    if arguments.store in {"postgres", "both"}:
        yield stack.enter_context(Postgres.started(arguments.postgres_version))


def _heading(machine: Machine, databases: list[Database]) -> str:
    load = ", ".join(f"{value:.2f}" for value in machine.load_at_start)
    changed = " with uncommitted changes" if machine.uncommitted_changes else ""
    lines = [
        f"duly {machine.duly}, commit {machine.commit[:10]}{changed}, {machine.at}",
        f"Python {machine.python}, {machine.processor}, {machine.cores} cores, load {load}",
        *(database.described for database in databases),
    ]
    return "\n".join(lines)


def _measured(wanted: tuple[str, ...], databases: list[Database], sizes: Sizes) -> Iterator[Figure]:
    for name in NAMES:
        if name not in wanted:
            continue
        if name in WITHOUT_A_DATABASE:
            _say(name)
            yield from WITHOUT_A_DATABASE[name](sizes)
            continue
        for database in databases:
            _say(f"{name} on {database.name}")
            yield from ON_A_DATABASE[name](database, sizes)


def _say(what: str) -> None:
    print(f"measuring {what} …", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
