"""Look up known vulnerabilities of pinned requirements with pip-audit.

The data is on the network. A file that cannot be looked up is named, but is not a failure.
"""

import json
import subprocess
import sys
from typing import Any, NamedTuple

_SECONDS = 180


class Verdict(NamedTuple):
    """The findings of pip-audit in one file."""

    audited: int
    """How many packages it has data on."""
    vulnerabilities: list[str]
    has_fix: bool
    """Whether a newer version of a package has fewer of these vulnerabilities."""


def verdict_of(report: dict[str, Any]) -> Verdict:
    """Return the verdict on a JSON report of pip-audit."""
    looked_up = [each for each in report["dependencies"] if "skip_reason" not in each]
    found = [
        f"{each['name']} {each['version']}: {one['id']}, fixed in "
        f"{', '.join(one['fix_versions']) or 'no version yet'}"
        for each in looked_up
        for one in each["vulns"]
    ]
    has_fix = any(one["fix_versions"] for each in looked_up for one in each["vulns"])
    return Verdict(len(looked_up), found, has_fix)


def ask(file: str) -> Verdict | None:
    """Run pip-audit on a file of requirements; None if it cannot reach its data."""
    command = [
        sys.executable, "-m", "pip_audit", "--no-deps", "--disable-pip", "--progress-spinner=off",
        "--format=json", "--cache-dir=.venv-audit/cache", "-r", file,
    ]  # fmt: skip
    try:
        done = subprocess.run(  # noqa: S603 - the command is our own
            command, capture_output=True, text=True, check=False, timeout=_SECONDS
        )
        verdict = verdict_of(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, json.JSONDecodeError):
        return None
    return verdict if verdict.audited else None


def main(files: list[str]) -> int:
    """Report on each file; return 1 if a newer version of a package mends a known vulnerability."""
    status = 0
    for file in files:
        verdict = ask(file)
        if verdict is None:
            words = "could not be audited: pip-audit does not reach its data here"
        elif verdict.vulnerabilities:
            words = f"has known vulnerabilities: {'; '.join(verdict.vulnerabilities)}"
            status = max(status, int(verdict.has_fix))
        else:
            words = f"has no known vulnerabilities among {verdict.audited} packages"
        sys.stdout.write(f"{file} {words}.\n")
        if verdict is None:
            break  # The others could not be looked up either, after as long a wait.
    return status


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
