"""The program of a process runner, `python -m duly.runtime.runners.process_program`."""

from duly.runtime.collecting import collect_rarely


def main() -> None:
    """Load what runs bodies, and serve."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.runtime.runners import process_child  # noqa: PLC0415

    process_child.main()


if __name__ == "__main__":
    main()
