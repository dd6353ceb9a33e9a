"""The program of a probe, `python -m duly.runtime.probe_process`."""

import sys

from duly.runtime.collecting import collect_rarely


def main() -> None:
    """Answer for the application named on the command line."""
    collect_rarely()
    from duly.runtime import probe  # noqa: PLC0415 - the garbage collector had to be told before

    app, descriptor = sys.argv[1:]
    probe.answer(app, int(descriptor))


if __name__ == "__main__":
    main()
