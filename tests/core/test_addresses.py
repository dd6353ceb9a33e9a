"""No form of an address for people contains its password."""

import pytest

from duly.core.addresses import ConnectionSecrets, has_password, shown_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("rediss://ann:pw@h/2", "rediss://ann:***@h/2"),
        ("redis://ann:p@w@h/2", "redis://ann:***@h/2"),
        ("unix://ann:pw@/run/r.sock?db=1", "unix://ann:***@/run/r.sock?db=1"),
        ("redis://h?password=a@b&db=3", "redis://h?password=***"),
        ("postgresql://ann@h:5432,i:5433/shop", "postgresql://ann@h:5432,i:5433/shop"),
        ("postgresql://ann:pw@[::1]:5432/shop", "postgresql://ann:***@[::1]:5432/shop"),
        ("postgresql://[::1]/shop", "postgresql://[::1]/shop"),
        ("postgresql://h/shop?sslpassword=pw&x=1", "postgresql://h/shop?sslpassword=***"),
        ("postgresql://ann:pw", "postgresql://ann:***"),
        ("ann:pw@h/shop", "***"),
    ],
)
def test_an_address_is_shown_without_its_password(url, shown):
    assert shown_address(url) == shown
    assert has_password(url) is (url != shown)


def test_the_passwords_of_a_connection_are_removed_from_texts_in_both_their_forms():
    secrets = ConnectionSecrets({"user": "ann", "password": "p/w", "sslpassword": None, "port": 1})

    shown = secrets.masked(ValueError("ann cannot use p/w at ann:p%2Fw@h:1"))

    assert shown == "ann cannot use *** at ann:***@h:1"


def test_an_empty_password_changes_no_text():
    assert ConnectionSecrets({"password": ""}).masked("no password supplied") == (
        "no password supplied"
    )
