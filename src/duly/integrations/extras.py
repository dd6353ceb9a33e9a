"""The error of an integration whose engine is not installed."""


def missing(error: ModuleNotFoundError, engine: str, package: str | None = None) -> ImportError:
    """Return the error to raise for a module that an integration could not import."""
    if (error.name or "").partition(".")[0] != engine:
        return error  # Another module is missing, perhaps one that the engine needs.
    return ImportError(
        f"{package or f'duly.integrations.{engine}'} needs {engine}; install it with: "
        f"pip install 'duly[{engine}]'",
        name=engine,
    )
