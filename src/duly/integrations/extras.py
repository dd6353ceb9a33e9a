"""What to say where an engine is not installed that an integration is for."""


def missing(error: ModuleNotFoundError, engine: str, integration: str | None = None) -> ImportError:
    """Return the error to raise for a module that an integration did not find."""
    if (error.name or "").partition(".")[0] != engine:
        return error  # Another module, which the engine itself may miss.
    return ImportError(
        f"duly.integrations.{integration or engine} needs {engine}; install it with: "
        f"pip install 'duly[{engine}]'",
        name=engine,
    )
