"""`python -m tests.upstream`: run the tests of other task systems against duly."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.upstream.comparison import PASSED, Comparison, compare, read_passes, read_reasons
from tests.upstream.packages import PACKAGES, Package, run, unpack

_HERE = Path(__file__).parent


def main() -> int:
    """Run the tests, print the counts, and return 1 if a list no longer holds."""
    parser = argparse.ArgumentParser(prog="python -m tests.upstream", description=__doc__)
    parser.add_argument("--sources", type=Path, required=True, help="where the archives are")
    parser.add_argument("--only", choices=[package.name for package in PACKAGES])
    parser.add_argument(
        "--accept", action="store_true", help="add new passes to the lists; nothing is removed"
    )
    asked = parser.parse_args()
    is_good = True
    for package in PACKAGES:
        if asked.only in {None, package.name}:
            found = _compared(package, asked.sources)
            _report(package, found)
            is_good = is_good and found.is_good
            if asked.accept:
                _accept(package, found)
    return 0 if is_good else 1


def _compared(package: Package, sources: Path) -> Comparison:
    passes = read_passes((_HERE / f"{package.name}.passes").read_text())
    reasons = read_reasons((_HERE / f"{package.name}.reasons").read_text())
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
        root = unpack(package, sources, Path(folder))
        outcomes = run(package, root)
        lost = [test for test in passes if outcomes.get(test, PASSED) != PASSED]
        if lost:
            # Many of these tests allow tasks a tenth of a second, which is short on a busy machine.
            again = run(package, root, lost)
            outcomes |= {test: again[test] for test in lost if test in again}
    return compare(outcomes, passes, reasons)


def _report(package: Package, found: Comparison) -> None:
    failed = found.tests - found.passed
    print(  # noqa: T201 - the result
        f"{package.name} {package.version}: {found.passed} of {found.tests} tests pass; "
        f"{len(found.unexplained)} of the other {failed} have no reason"
    )
    for what, tests in (
        ("was on the list of passes and did not pass", found.lost),
        ("did not pass and has no reason", found.unexplained),
        ("passes and is not on the list; --accept adds it", found.new),
        (
            "passes although it has a reason; remove the reason, and --accept adds it",
            found.outdated,
        ),
        ("is a reason's pattern that no failed test fits", found.unused),
    ):
        for test in tests:
            print(f"  {test} {what}")  # noqa: T201 - as above


def _accept(package: Package, found: Comparison) -> None:
    path = _HERE / f"{package.name}.passes"
    kept = set(read_passes(path.read_text())) | set(found.new)
    path.write_text("".join(f"{test}\n" for test in sorted(kept)))


if __name__ == "__main__":
    sys.exit(main())
