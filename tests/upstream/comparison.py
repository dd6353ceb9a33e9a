"""Compare the results of upstream tests with the committed lists.

A list of passes has one test id per line, sorted. A list of reasons has sentences, each followed by
the indented ids of the tests that it explains. `*` matches any text.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

PASSED = "passed"
BY_TIMING = "depends on timing: "
KINDS = ("private name: ", "different on purpose: ", "not tested here: ", BY_TIMING)


class BadList(Exception):
    """A committed list cannot be read."""


@dataclass(frozen=True)
class Reason:
    """The reason why tests are not on the list of passes."""

    sentence: str
    patterns: tuple[str, ...]

    @property
    def allows_passes(self) -> bool:
        """Return whether its tests pass in one run and fail in another."""
        return self.sentence.startswith(BY_TIMING)

    def explains(self, test: str) -> bool:
        """Return whether one of its patterns matches a test."""
        return any(_fits(pattern, test) for pattern in self.patterns)


@dataclass(frozen=True)
class Comparison:
    """The result of the tests of one package."""

    tests: int
    passed: int
    lost: tuple[str, ...]
    """Tests that are on the list of passes, and did not pass."""
    unexplained: tuple[str, ...]
    """Tests that are not on the list, did not pass, and have no reason."""
    new: tuple[str, ...]
    """Tests that passed, are not on the list, and have no reason."""
    outdated: tuple[str, ...]
    """Tests that passed and are not on the list, although a reason says that they cannot pass."""
    unused: tuple[str, ...]
    """Patterns that match no failed test. A test that depends on timing may fail or pass."""

    @property
    def is_good(self) -> bool:
        """Return whether the lists still hold."""
        return not self.lost and not self.unexplained


def compare(
    outcomes: Mapping[str, str], passes: Collection[str], reasons: Sequence[Reason]
) -> Comparison:
    """Compare the outcomes of tests with the lists of a package."""
    strict = [reason for reason in reasons if not reason.allows_passes]

    def is_explained(test: str) -> bool:
        return any(reason.explains(test) for reason in reasons)

    passed = {test for test, outcome in outcomes.items() if outcome == PASSED}
    others = sorted(outcomes.keys() - passed)
    unlisted = sorted(passed - set(passes))
    patterns = [pattern for reason in strict for pattern in reason.patterns]
    return Comparison(
        tests=len(outcomes),
        passed=len(passed),
        lost=tuple(sorted(set(passes) - passed)),
        unexplained=tuple(t for t in others if t not in passes and not is_explained(t)),
        new=tuple(test for test in unlisted if not is_explained(test)),
        outdated=tuple(t for t in unlisted if any(reason.explains(t) for reason in strict)),
        unused=tuple(p for p in patterns if not any(_fits(p, test) for test in others)),
    )


def read_passes(text: str) -> list[str]:
    """Return the tests of a list of passes. Raise BadList if it is invalid."""
    found = text.splitlines()
    if found != sorted(set(found)):
        raise BadList("a list of passes has one test per line, sorted, each once")
    return found


def read_reasons(text: str) -> list[Reason]:
    """Return the reasons of a list. Raise BadList if it is invalid."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("    ") and line.strip() and found:
            found[-1][1].append(line.strip())
        elif line.startswith(KINDS) and line.endswith("."):
            found.append((line, []))
        elif line:
            raise BadList(f"neither an indented test nor a sentence of a known kind: {line!r}")
    for sentence, patterns in found:
        if not patterns:
            raise BadList(f"no test is named below {sentence!r}")
    return [Reason(sentence, tuple(patterns)) for sentence, patterns in found]


def _fits(pattern: str, test: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test) is not None
