"""`duly`, and `python -m duly` for where that script is not on the path: the command line."""

from duly.worker.garbage_collection import collect_as_usual, collect_rarely


def main() -> None:
    """Load the command line and run it."""
    collect_rarely()
    from duly import cli  # noqa: PLC0415 - the garbage collector had to be told before

    try:
        cli.main()
    finally:
        # Where no application was imported, the interpreter need not look at what is ours again.
        collect_as_usual()


if __name__ == "__main__":
    main()
