"""The program of a probe, `python -m duly.worker.app_probe_program`."""

from duly.worker.garbage_collection import collect_rarely


def main() -> None:
    """Answer for the application named on the command line."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.worker import app_probe  # noqa: PLC0415
    from duly.worker.process_lifetime import run_and_exit  # noqa: PLC0415

    run_and_exit(app_probe.main)


if __name__ == "__main__":
    main()
