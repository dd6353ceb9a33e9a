"""Records a response as it is sent, and detects when the client could have all of it."""

from collections.abc import Callable

from duly.integrations.http_idempotency.replies import (
    WITHOUT_BODY,
    Headers,
    Reply,
    fit_to_replay,
    forbids_storing,
)
from duly.integrations.http_idempotency.request import parse_length
from duly.limits import RESULT_BYTES

# Base64 encodes three bytes as four characters.
_LARGEST_BODY = RESULT_BYTES * 3 // 4


class ResponseRecorder:
    """Records one response."""

    def __init__(self, keeps: Callable[[int], bool]) -> None:
        self.is_kept = False
        """Whether the status completes the request, so that it does not run again."""
        self._keeps = keeps
        self._status = 0
        self._headers: Headers = []
        self._body = bytearray()
        self._may_be_stored = True
        self._seen = 0
        self._whole: int | None = None

    def start(self, status: int, headers: Headers) -> None:
        """Record the start of the response."""
        self.is_kept = self._keeps(status)
        self._status = status
        self._headers = fit_to_replay(headers)
        self._may_be_stored = not forbids_storing(headers)
        self._whole = 0 if status in WITHOUT_BODY else _content_length(headers)

    def expect(self, size: int) -> None:
        """Set the size of the body, unless the headers contain it."""
        if self._whole is None:
            self._whole = size

    def add(self, chunk: bytes) -> None:
        """Record a part of the body."""
        self._seen += len(chunk)
        if not self._is_stored:
            self._body.clear()
        elif self.is_kept:
            self._body += chunk

    @property
    def is_complete(self) -> bool:
        """Whether the client could have the whole response, or it is too large to keep."""
        is_whole = self._whole is not None and self._seen >= self._whole
        return is_whole or (self.is_kept and self._seen > _LARGEST_BODY)

    def reply(self) -> Reply:
        """Return the response to keep."""
        return Reply(self._status, self._headers, bytes(self._body) if self._is_stored else None)

    @property
    def _is_stored(self) -> bool:
        return self._may_be_stored and self._seen <= _LARGEST_BODY


def _content_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name.lower() == "content-length":
            return parse_length(value.strip())
    return None
