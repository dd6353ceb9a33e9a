"""Checks keys, names and tags, with the same rules for both databases."""

import json

from duly.core.run_ids import is_run_id
from duly.core.states import RESERVED_TAGS
from duly.errors import BadOption, RunNotFound
from duly.limits import KEY_BYTES, NAME_BYTES, TAG_CHARACTERS, TAGS


def check_key(key: str, what: str = "key", limit: int = KEY_BYTES) -> str:
    """Return the key, or raise BadOption if it is not valid."""
    return _check_text(what, key, limit)


def check_name(what: str, name: str) -> str:
    """Return the name of a task or a queue, or raise BadOption if it is not valid."""
    _check_text(what, name, NAME_BYTES)
    if any(
        character.isspace() or character == "," or not character.isprintable() for character in name
    ):
        message = f"{what} {name!r} must not contain blanks, commas or control characters"
        raise BadOption(message)
    return name


def check_queue(name: str) -> str:
    """Return the name of a queue, or raise BadOption if it is not valid."""
    if check_name("queue", name).startswith("-"):
        message = f"queue {name!r} must not begin with '-', as the options of commands do"
        raise BadOption(message)
    return name


def check_tags(tags: dict[str, str]) -> dict[str, str]:
    """Return the tags, or raise BadOption if they cannot be stored."""
    if not isinstance(tags, dict):
        message = f"tags must be a dict of strings, such as {{'tenant': 'x'}}, not {tags!r:.80}"
        raise BadOption(message)
    if len(tags) > TAGS:
        message = f"a run has at most {TAGS} tags, not {len(tags)}"
        raise BadOption(message)
    for name, value in tags.items():
        for text in (name, value):
            if type(text) is not str or len(text) > TAG_CHARACTERS:
                message = (
                    f"tag {name!r}: names and values must be strings of at most {TAG_CHARACTERS} "
                    f"characters, not {text!r:.80}"
                )
                raise BadOption(message)
            check_storable("tag", text)
        if not name:
            message = "a tag needs a name"
            raise BadOption(message)
        if name.startswith(RESERVED_TAGS):
            message = f"tag {name!r}: names that begin with {RESERVED_TAGS!r} are reserved for duly"
            raise BadOption(message)
    return tags


def encode_tags(tags: dict[str, str] | None) -> str | None:
    """Return the stored form of tags."""
    return json.dumps(check_tags(tags)) if tags else None


def check_unique(value: str) -> str:
    """Return how long a key is unique, or raise BadOption."""
    if value not in {"run", "active"}:
        message = f'unique must be "run" or "active", not {value!r}'
        raise BadOption(message)
    return value


def _check_text(what: str, text: str, limit: int) -> str:
    if not isinstance(text, str):
        message = f"{what} must be a string, not {type(text).__name__}"
        raise BadOption(message)
    check_storable(what, text)
    if not 1 <= len(text.encode()) <= limit:
        message = f"{what} must have 1 to {limit} bytes in UTF-8, not {len(text.encode())}"
        raise BadOption(message)
    return text


def check_words(what: str, text: str, limit: int) -> str:
    """Return a text that a person wrote, or raise BadOption if it cannot be stored."""
    if not isinstance(text, str) or len(text) > limit:
        message = f"{what} must be a string of at most {limit} characters, not {text!r:.80}"
        raise BadOption(message)
    check_storable(what, text)
    return text


def check_run_id(run_id: str) -> str:
    """Return the id, or raise RunNotFound if it has another form than the ids of runs.

    Some databases refuse a query for such a text.
    """
    if not isinstance(run_id, str) or not is_run_id(run_id):
        raise RunNotFound(run_id)
    return run_id


def check_storable(what: str, text: str) -> None:
    """Raise BadOption for a text that a database would refuse."""
    if "\x00" in text:
        message = f"{what} {text!r:.80} contains a NUL character, which databases cannot store"
        raise BadOption(message)
    try:
        text.encode()
    except UnicodeEncodeError:
        message = f"{what} {text!r:.80} contains a lone surrogate, which is not valid text"
        raise BadOption(message) from None
