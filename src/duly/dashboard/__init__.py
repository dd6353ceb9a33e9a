"""The dashboard shows running, waiting and failed runs, and lets operators act on them.

`dashboard(app, auth=...)` is an ASGI application, which another one can mount or a server can
serve.
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
