"""The secrets of a call are hidden in its arguments, its result and texts about it."""

import json
from base64 import b64encode
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest

from duly.clock import monotonic
from duly.core.payload import CallCodec
from duly.core.redaction import Redaction, text_redactor

SECRET = 'it\'s a "s3cret"\nof two lines/ü'  # noqa: S105 - a canary


@dataclass
class Login:
    """A class with a field whose name suggests a secret."""

    user: str
    password: str


def charge(card: Any, note: str = "", *rest: Any, **more: Any) -> None: ...


CODEC = CallCodec(charge, redact=("card",))


def test_values_of_redacted_names_are_hidden_at_every_depth():
    data = {"a": [{"card": 1, "b": {"card": [2]}}], "token": "x", "card_count": 3}

    assert Redaction(["card"]).data(data) == {
        "a": [{"card": "***", "b": {"card": "***"}}],
        "token": "***",
        "card_count": 3,
    }


@pytest.mark.parametrize(
    "card",
    [SECRET, [SECRET], {"number": SECRET}, (SECRET,), {SECRET: 1}, SECRET.encode(), {SECRET}],
)
@pytest.mark.parametrize(
    "quoted",
    [
        *(str, repr, json.dumps, partial(json.dumps, ensure_ascii=False), partial(quote, safe="")),
        *(lambda text: "\n  | ".join(text.splitlines()), lambda text: text * 3),
    ],
)
def test_a_text_about_a_call_contains_no_redacted_value(card, quoted):
    stored = CODEC.encode((card,), {})

    shown = CODEC.redacted_text(f"refused: {quoted(SECRET)}", stored)

    assert shown.startswith("refused: ")
    assert not any(part in shown for part in ("s3cret", "two lines"))


@pytest.mark.parametrize("quoted", [repr, lambda data: b64encode(data).decode()])
def test_bytes_are_hidden_in_their_printed_and_their_stored_form(quoted):
    card = b"\xff\xfe s3cret"

    shown = CODEC.redacted_text(f"refused: {quoted(card)}.", CODEC.encode((card,), {}))

    assert shown.replace("b'***'", "***") == "refused: ***."


@pytest.mark.parametrize("card", [4111_2222, 4111_2222.5, True, None, "", "abc", 0])
def test_long_numbers_are_hidden_and_short_values_are_shown(card):
    shown = CODEC.redacted_text(f"refused: {card} abc", CODEC.encode((card,), {}))

    assert shown == f"refused: {card} abc".replace("41112222.5", "***").replace("41112222", "***")


def test_the_class_of_a_redacted_value_is_shown():
    def log_in(login: Login) -> None: ...

    codec = CallCodec(log_in, redact=("login",))
    stored = codec.encode((Login("annabel", "hunter2"),), {})

    error = "Login(user='annabel', password='hunter2')"
    assert codec.redacted_text(error, stored) == "Login(user='***', password='***')"


def test_a_redacted_value_is_hidden_in_other_arguments_and_in_the_result():
    stored = CODEC.encode(("4111-2222", "paid by 4111-2222"), {"api_key": "k3y-k3y"})
    result = json.dumps({"used": "k3y-k3y", "card": 1, "paid": ["4111-2222", 7]})

    shown = json.loads(CODEC.redacted_result(result, stored) or "")

    assert json.loads(CODEC.redacted(stored)) == [
        [],
        {"card": "***", "note": "paid by ***", "api_key": "***"},
    ]
    assert shown == {"used": "***", "card": "***", "paid": ["***", 7]}


def test_a_redacted_value_is_hidden_when_it_is_a_number_or_a_dict_key():
    number = CODEC.encode((4111_2222,), {"used": [4111_2222, 7]})
    text = CODEC.encode(("4111-2222",), {"used": {"4111-2222": 1}})

    assert json.loads(CODEC.redacted(number))[1]["used"] == ["***", 7]
    assert json.loads(CODEC.redacted(text))[1]["used"] == {"***": 1}


def test_text_that_cannot_be_decoded_is_hidden_completely():
    assert CODEC.redacted_result("{4111-2222", "[[],{}]") == "***"
    assert CODEC.redacted('[[],{"unknown"') == "***"
    unfit = json.dumps([[], {"nobody": "4111-2222"}])
    assert CallCodec(Login).redacted_text("refused: 4111-2222", unfit) == "refused: ***"


def test_the_longest_secret_is_hidden_first():
    assert text_redactor(["hunter2", "hunter2-hunter2"])("is hunter2-hunter2") == "is ***"


def test_overlapping_secrets_are_hidden_completely():
    redact = text_redactor(["abcdef", "defghi", "cdef"])

    assert redact("<abcdefghi cdef abcdef>") == "<*** *** ***>"
    assert text_redactor(["abcdefghi", "cdef"])("<abcdefghi>") == "<***>"


def test_the_time_to_hide_many_secrets_grows_linearly():
    users = [{"token": f"token number {n}", "name": f"user number {n}"} for n in range(4_000)]
    stored = CODEC.encode(("4111",), {"users": users})

    began = monotonic()
    shown = CODEC.redacted(stored)

    assert "token number" not in shown
    assert "user number 3999" in shown
    assert monotonic() - began < 2
