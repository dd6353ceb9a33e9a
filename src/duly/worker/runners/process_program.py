"""The program of a process runner, `python -m duly.worker.runners.process_program`."""

from duly.worker.garbage_collection import collect_rarely


def main() -> None:
    """Load what runs bodies, and serve."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.worker.runners import process_main  # noqa: PLC0415

    process_main.main()


if __name__ == "__main__":
    main()
