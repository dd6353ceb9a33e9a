"""The dashboard: what runs, what waits, what failed, and what people may do about it.

`dashboard(app, auth=...)` is an ASGI application, to be mounted in another or served on its own.
"""

try:
    from duly.dashboard.application import dashboard
    from duly.dashboard.auth import BasicAuth, TokenAuth, Viewer
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"starlette", "jinja2", "python_multipart"}:
        raise
    message = (
        "duly.dashboard needs starlette and jinja2; install them with: pip install 'duly[web]'"
    )
    raise ImportError(message, name=error.name) from error

__all__ = ["BasicAuth", "TokenAuth", "Viewer", "dashboard"]
