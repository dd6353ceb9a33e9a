"""The program of a worker process under a keeper, `python -m duly.runtime.child`.

What it runs is in `watch`; here is what the keeper and it agree on, who runs no tasks itself.
"""

from duly.runtime.collecting import collect_rarely

ENVIRONMENT = "DULY_CHILD"
NOT_FOUND = 64
CANNOT_START = 78
CANNOT_LOAD = {NOT_FOUND: 2, CANNOT_START: 1}
"""The exit statuses (EX_USAGE, EX_CONFIG) that tell the keeper that trying again is useless, each
with its own status then: a usage error, or a failure."""
TRY_AGAIN = 75
"""The exit status (EX_TEMPFAIL) of a child that met an outage; the keeper starts another."""


def main() -> None:
    """Load what a worker needs, and run one."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.runtime import watch  # noqa: PLC0415
    from duly.runtime.dying import end_after  # noqa: PLC0415

    end_after(watch.main)


if __name__ == "__main__":
    main()
