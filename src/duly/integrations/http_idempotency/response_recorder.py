"""A response as it passes: what of it is to be kept, and when the client could have it all."""

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

# Base64 makes four characters of three bytes.
_LARGEST_BODY = RESULT_BYTES * 3 // 4


class ResponseRecorder:
    """What has been seen of a response."""

    def __init__(self, keeps: Callable[[int], bool]) -> None:
        self.is_kept = False
        """Whether its status ends the request, so that it is not carried out again."""
        self._keeps = keeps
        self._status = 0
        self._headers: Headers = []
        self._body = bytearray()
        self._may_be_stored = True
        self._seen = 0
        self._whole: int | None = None

    def start(self, status: int, headers: Headers) -> None:
        """Take note of the head of the response."""
        self.is_kept = self._keeps(status)
        self._status = status
        self._headers = fit_to_replay(headers)
        self._may_be_stored = not forbids_storing(headers)
        self._whole = 0 if status in WITHOUT_BODY else _content_length(headers)

    def expect(self, size: int) -> None:
        """Take note of how many bytes there will be, unless the head has said so."""
        if self._whole is None:
            self._whole = size

    def add(self, chunk: bytes) -> None:
        """Take note of a part of the body."""
        self._seen += len(chunk)
        if not self._is_stored:
            self._body.clear()
        elif self.is_kept:
            self._body += chunk

    @property
    def is_complete(self) -> bool:
        """Whether its end is known: the client could have all of it, or it is too large to keep."""
        is_whole = self._whole is not None and self._seen >= self._whole
        return is_whole or (self.is_kept and self._seen > _LARGEST_BODY)

    def reply(self) -> Reply:
        """Return what is kept."""
        return Reply(self._status, self._headers, bytes(self._body) if self._is_stored else None)

    @property
    def _is_stored(self) -> bool:
        return self._may_be_stored and self._seen <= _LARGEST_BODY


def _content_length(headers: Headers) -> int | None:
    for name, value in headers:
        if name.lower() == "content-length":
            return parse_length(value.strip())
    return None
