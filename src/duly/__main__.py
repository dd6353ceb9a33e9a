"""The command line: `duly`, or `python -m duly` if that script is not on the path."""

from duly.worker.garbage_collection import collect_as_usual, collect_rarely


def main() -> None:
    """Load the command line and run it."""
    collect_rarely()
    from duly import cli  # noqa: PLC0415 - collect_rarely() must run first

    try:
        cli.main()
    finally:
        # If no application was imported, the interpreter need not scan duly's own objects again.
        collect_as_usual()


if __name__ == "__main__":
    main()
