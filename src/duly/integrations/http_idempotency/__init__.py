"""The `Idempotency-Key` header of HTTP requests, for ASGI and WSGI applications."""

from duly.integrations.http_idempotency.asgi import IdempotencyMiddleware
from duly.integrations.http_idempotency.policy import is_final
from duly.integrations.http_idempotency.request import Request, credentials
from duly.integrations.http_idempotency.wsgi import WSGIIdempotencyMiddleware

__all__ = [
    "IdempotencyMiddleware",
    "Request",
    "WSGIIdempotencyMiddleware",
    "credentials",
    "is_final",
]
