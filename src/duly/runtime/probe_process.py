"""The program of a probe, `python -m duly.runtime.probe_process`."""

from duly.runtime.collecting import collect_rarely


def main() -> None:
    """Answer for the application named on the command line."""
    collect_rarely()
    # The garbage collector had to be told before.
    from duly.runtime import probe  # noqa: PLC0415
    from duly.runtime.dying import end_after  # noqa: PLC0415

    end_after(probe.main)


if __name__ == "__main__":
    main()
