"""Valid and invalid keys, names and tags. Every store accepts all valid ones."""

import pytest

from duly.core.key import check_key, check_name, check_tags
from duly.errors import BadOption
from duly.limits import KEY_BYTES, NAME_BYTES, TAG_CHARACTERS, TAGS

NUL = "a\x00b"
LONE_SURROGATE = "a\ud800b"


@pytest.mark.parametrize(
    "key", ["k", "order 17, paid", "Zürich → Genève", " ", "\n", "x" * KEY_BYTES, "é" * 127]
)
def test_a_valid_key_is_returned_unchanged(key):
    assert check_key(key) == key


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "1 to 255 bytes"),
        ("x" * (KEY_BYTES + 1), "not 256"),
        # 128 characters, but two bytes each: both databases count bytes.
        ("é" * 128, "not 256"),
        (NUL, "NUL"),
        (LONE_SURROGATE, "lone surrogate"),
        (17, "must be a string, not int"),
        (b"k", "must be a string, not bytes"),
        (None, "must be a string, not NoneType"),
    ],
)
def test_an_invalid_key_is_refused(key, why):
    with pytest.raises(BadOption, match=why):
        check_key(key)


@pytest.mark.parametrize(
    "name", ["default", "shop.tasks:send", "über", "a/b-c_d", "x" * NAME_BYTES]
)
def test_a_valid_name_is_returned_unchanged(name):
    assert check_name("queue", name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "1 to 255 bytes"),
        ("x" * (NAME_BYTES + 1), "not 256"),
        ("two words", "blanks"),
        ("a,b", "commas"),
        ("line\nbreak", "blanks"),
        ("bell\x07", "control characters"),
        ("no\u00a0break", "blanks"),
        ("right\u202eto left", "control characters"),
        (NUL, "NUL"),
        (LONE_SURROGATE, "lone surrogate"),
        (5, "queue must be a string, not int"),
    ],
)
def test_an_invalid_name_is_refused(name, why):
    with pytest.raises(BadOption, match=why):
        check_name("queue", name)


def test_valid_tags_are_returned_unchanged():
    tags = {"customer": "17", "empty": "", "x" * TAG_CHARACTERS: "y" * TAG_CHARACTERS}

    assert check_tags(tags) == tags


def test_the_maximum_number_of_tags_is_accepted():
    tags = {f"tag {number}": "" for number in range(TAGS)}

    assert check_tags(tags) == tags


@pytest.mark.parametrize(
    ("tags", "why"),
    [
        ({f"tag {number}": "" for number in range(TAGS + 1)}, "at most 32 tags, not 33"),
        ({"": "value"}, "a tag needs a name"),
        ({"name": "x" * (TAG_CHARACTERS + 1)}, "at most 255 characters"),
        ({"x" * (TAG_CHARACTERS + 1): "value"}, "at most 255 characters"),
        ({"name": 17}, "not 17"),
        ({17: "value"}, "not 17"),
        ({"name": NUL}, "NUL"),
        ({LONE_SURROGATE: "value"}, "lone surrogate"),
        ({"duly.parent": "value"}, "are reserved for duly"),
    ],
)
def test_invalid_tags_are_refused(tags, why):
    with pytest.raises(BadOption, match=why):
        check_tags(tags)
