"""A name and a password are read from a header, or the header is refused."""

from base64 import b64encode

import pytest

from duly.credentials import read_basic


def encoded(pair):
    return b64encode(pair).decode()


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        (f"Basic {encoded(b'ann:s3cret')}", ("ann", "s3cret")),
        (f"basic {encoded(b'ann:a:b')}", ("ann", "a:b")),
        (f"Basic {encoded(b':')}", ("", "")),
        (f"Basic {encoded('ä:ö'.encode())}", ("ä", "ö")),
        (f"Basic {encoded(b'no colon')}", None),
        (f"Basic {encoded(bytes([255, 58]))}", None),
        (f"Bearer {encoded(b'ann:s3cret')}", None),
        ("Basic not base64", None),
        ("Basic", None),
        ("", None),
    ],
)
def test_a_basic_header_is_read_or_refused(header, pair):
    assert read_basic(header) == pair
