"""`python -m benchmarks.comparison --base COMMIT`: fail if a commit is slower than its base."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack

from benchmarks.comparison.alternate import Store, compare, postgres, sqlite
from benchmarks.comparison.builds import build
from benchmarks.comparison.ratios import FEWEST_ROUNDS, SLOWEST_RATIO, table
from benchmarks.processes import ROOT
from tests.servers.kinds import POSTGRES_URL_VARIABLE
from tests.servers.postgres import PostgresEndpoint, PostgresServer, find_binaries

BUILDS = ROOT / ".venv-comparison"
AMOUNTS = {
    "drain": 30_000,
    "enqueue": 1_500,
    "keyed enqueue": 800,
    "aenqueue": 10_000,
    "enqueue_many": 50_000,
    "latency": 100,
    "lone run": 150,
    "steps": 400,
    "transactions": 10_000,
}
"""The count of one measurement in each workload: about a second of work."""


def main() -> int:
    """Build, measure, print the table; the exit status tells whether a workload became slower."""
    arguments = _parser().parse_args()
    # An exception removes servers, workers and folders; the default action would not.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    base = build(arguments.base, folder=BUILDS)
    head = build(arguments.head, folder=BUILDS)
    rounds = arguments.rounds
    print(f"base {base.commit[:10]}, head {head.commit[:10]}, {rounds} rounds", flush=True)
    with ExitStack() as stack:
        comparisons = [
            compare(
                base,
                head,
                workload=workload,
                amount=AMOUNTS[workload],
                store=store,
                rounds=rounds,
            )
            for store in _stores(arguments.store, stack)
            for workload in arguments.only or AMOUNTS
        ]
    print(table(comparisons))
    slower = [f"{each.workload} on {each.store}" for each in comparisons if each.is_slower]
    if slower:
        print(f"Slower than {SLOWEST_RATIO:g} of the base: {', '.join(slower)}.")
    return int(bool(slower))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.comparison", description=__doc__)
    parser.add_argument("--base", required=True, help="the commit to compare with")
    parser.add_argument("--head", default="HEAD", help="default: HEAD, without uncommitted changes")
    parser.add_argument("--only", action="append", choices=AMOUNTS, help="may be given repeatedly")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--rounds", type=_rounds, default=FEWEST_ROUNDS)
    return parser


def _rounds(text: str) -> int:
    if int(text) < FEWEST_ROUNDS:
        raise argparse.ArgumentTypeError(f"fewer than {FEWEST_ROUNDS} rounds decide nothing")
    return int(text)


def _stores(wanted: str, stack: ExitStack) -> Iterator[Store]:
    if wanted in {"sqlite", "both"}:
        yield sqlite()
    if wanted in {"postgres", "both"}:
        if url := os.environ.get(POSTGRES_URL_VARIABLE):
            yield postgres(PostgresEndpoint(url))
        else:
            found = find_binaries()
            yield postgres(stack.enter_context(PostgresServer(found[max(found)])))


if __name__ == "__main__":
    sys.exit(main())
