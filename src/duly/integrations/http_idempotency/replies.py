"""Responses sent without calling the application: kept responses and problem details."""

import base64
import binascii
import json
from dataclasses import dataclass
from http import HTTPStatus

from duly.errors import Busy, ClaimLost, KeyConflict, PayloadError, StoreError
from duly.limits import RESULT_BYTES

Headers = list[tuple[str, str]]

REPLAYED_HEADER = "Idempotent-Replayed"
WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})

_BUSY_SECONDS = 1
_OUTAGE_SECONDS = 5
_TITLES = {
    400: "Bad Request",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    422: "Unprocessable Content",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_OF_ONE_CONNECTION = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_NOT_REPLAYED = _OF_ONE_CONNECTION | {
    "content-length",
    "date",
    "set-cookie",
    REPLAYED_HEADER.lower(),
}


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response. Its body is None if it was too large to keep or must not be stored."""

    status: int
    headers: Headers
    body: bytes | None

    @property
    def replayed(self) -> "Reply":
        """The response as it is sent to a retry."""
        headers = [*self.headers, (REPLAYED_HEADER, "true")]
        if self.status not in WITHOUT_BODY:
            headers.append(("Content-Length", str(len(self.body or b""))))
        return Reply(self.status, headers, self.body)

    @property
    def size(self) -> int:
        """The approximate number of bytes that the response takes in the ledger."""
        heads = sum(len(name) + len(value) for name, value in self.headers)
        return 0 if self.body is None else heads + len(self.body) * 4 // 3


class Replies:
    """Encodes replies as results of a guard, and decodes them."""

    def encode_result(self, value: object) -> str:
        """Return the text to store for a reply."""
        if not isinstance(value, Reply) or value.body is None:
            raise PayloadError(
                "response", "the response is too large, or its Cache-Control is no-store"
            )
        body = base64.b64encode(value.body).decode()
        text = json.dumps([value.status, value.headers, body], separators=(",", ":"))
        if len(text) > RESULT_BYTES:
            raise PayloadError("response", f"takes more than {RESULT_BYTES} bytes of storage")
        return text

    def decode_result(self, text: str | None) -> Reply:
        """Return a stored reply."""
        try:
            status, headers, body = json.loads(text or "")
            pairs = [(str(name), str(value)) for name, value in headers]
            return Reply(int(status), pairs, base64.b64decode(body))
        except (ValueError, TypeError, binascii.Error) as error:
            raise PayloadError("response", "the stored value is not a response") from error


def fit_to_replay(headers: Headers) -> Headers:
    """Return the headers that belong to the response, not to one connection or moment.

    Cookies are omitted: they may name a session that has ended since.
    """
    listed = (value for name, value in headers if name.lower() == "connection")
    named = {name.strip().lower() for value in listed for name in value.split(",")}
    left_out = _NOT_REPLAYED | named
    return [(name, value) for name, value in headers if name.lower() not in left_out]


def forbids_storing(headers: Headers) -> bool:
    """Return whether a response forbids that it is stored (RFC 9111, 5.2.2.5)."""
    said = ",".join(value for name, value in headers if name.lower() == "cache-control")
    return "no-store" in {directive.strip().lower() for directive in said.split(",")}


class ProblemResponses:
    """Problem details (RFC 9457), with a link to the API's documentation if there is one."""

    def __init__(self, documentation: str | None) -> None:
        self._documentation = documentation

    def key_missing(self) -> Reply:
        """Return the reply if the header is required and missing."""
        return self._problem(
            400,
            "key-missing",
            "This operation needs an Idempotency-Key header. Send one, such as a UUID in double "
            "quotes, and send the same key when you retry.",
        )

    def key_malformed(self, why: str) -> Reply:
        """Return the reply if the header does not contain a valid key."""
        return self._problem(
            400,
            "key-malformed",
            f"The Idempotency-Key header is malformed: {why}. Send one key, such as a UUID in "
            "double quotes.",
        )

    def caller_unknown(self) -> Reply:
        """Return the reply if the request does not prove its caller.

        Its key could not be distinguished from the same key of another caller.
        """
        return self._problem(
            400,
            "caller-unknown",
            "An Idempotency-Key belongs to one caller, and this request does not identify its "
            "caller. Nothing was done; send the request again with your credentials.",
        )

    def body_unreadable(self) -> Reply:
        """Return the reply if the body is not as long as announced."""
        return self._problem(
            400,
            "body-incomplete",
            "The body is not as long as Content-Length says. Nothing was done; send the request "
            "again.",
        )

    def length_required(self) -> Reply:
        """Return the reply if the server cannot determine where the body ends."""
        return self._problem(
            411,
            "length-required",
            "This server cannot read a chunked body. Nothing was done; send the request again "
            "with a Content-Length.",
        )

    def body_too_large(self, limit: int) -> Reply:
        """Return the reply if the body is larger than allowed for a request with a key."""
        return self._problem(
            413,
            "body-too-large",
            f"A request with an Idempotency-Key may have a body of at most {limit} bytes. Nothing "
            "was done; send a smaller body.",
        )

    def quota_used_up(self, seconds: int | None) -> Reply:
        """Return the reply if the caller has too many responses in the ledger."""
        return self._problem(
            429,
            "too-many-keys",
            "You have used as many Idempotency-Keys as this server keeps for one caller. Nothing "
            "was done; send this request again later. Repeats of earlier requests still work.",
            seconds,
        )

    def not_entered(self, error: Busy | KeyConflict | StoreError) -> Reply:
        """Return the reply if the key could not be acquired, so that nothing was done."""
        match error:
            case Busy():
                return self._problem(
                    409,
                    "in-progress",
                    "A request with this Idempotency-Key is in progress. Send this request again "
                    "later, unchanged, to get its response.",
                    _BUSY_SECONDS,
                )
            case KeyConflict():
                return self._problem(
                    422,
                    "key-reused",
                    "This Idempotency-Key was used for another request. Use a new key for a new "
                    "request; send a retry unchanged.",
                )
            case _:
                return self._problem(
                    503,
                    "ledger-unavailable",
                    "It is unknown at the moment whether this request was processed before. "
                    "Nothing was done now; send the request again later, unchanged.",
                    _OUTAGE_SECONDS,
                )

    def not_recorded(self, error: ClaimLost | StoreError) -> Reply:
        """Return the reply if the application has answered but its response cannot be relied on."""
        if isinstance(error, ClaimLost):
            return self._problem(
                500,
                "claim-lost",
                "The process of this request stopped responding for so long that a repeat may have "
                "started. Send the request again, unchanged, to learn its result.",
            )
        return self._problem(
            500,
            "not-recorded",
            "This request was processed, but that could not be recorded. A repeat may process it "
            "again; first check whether it took effect.",
        )

    def not_kept(self) -> Reply:
        """Return the reply if the request was handled before but its response was not kept."""
        return self._problem(
            409,
            "response-not-kept",
            "The request with this Idempotency-Key was processed, but its response was too large "
            "to store, or must not be stored. The request is not processed again; check its result "
            "where it took effect.",
        )

    def _problem(
        self, status: int, code: str, detail: str, retry_after: int | None = None
    ) -> Reply:
        documented = self._documentation
        content = {
            "type": "about:blank" if documented is None else f"{documented}#{code}",
            "title": _TITLES[status],
            "status": status,
            "detail": detail,
            "code": code,
        }
        body = json.dumps(content).encode()
        headers = [
            ("Content-Type", "application/problem+json"),
            ("Content-Length", str(len(body))),
        ]
        if documented is not None:
            headers.append(("Link", f'<{documented}>; rel="describedby"'))
        if retry_after is not None:
            headers.append(("Retry-After", str(retry_after)))
        return Reply(status, headers, body)
