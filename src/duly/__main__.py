"""`duly`, and `python -m duly` for where that script is not on the path: the command line."""

from duly.runtime.collecting import collect_no_more, collect_rarely


def main() -> None:
    """Load the command line and run it."""
    collect_rarely()
    from duly import cli  # noqa: PLC0415 - the garbage collector had to be told before

    try:
        cli.main()
    finally:
        collect_no_more()


if __name__ == "__main__":
    main()
