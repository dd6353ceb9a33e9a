"""The table [tool.duly] of a pyproject.toml.

Its settings decide which database is used and which module is imported. The search for the file
visits directories of other users. So a file that another user owns or can change is refused.
"""

import os
import re
import stat
from functools import cache

from duly.errors import BadOption
from duly.file_owners import is_open_to_all, is_trusted_owner

# ruff: noqa: PTH100, PTH109, PTH116, PTH118, PTH120 - pathlib is slow to import, and every program
# that enqueues imports this.

VARIABLE = "DULY_PYPROJECT"
"""The variable that names the file to read. Its owner is not checked then."""


def read_project() -> tuple[str, dict[str, object]]:
    """Return the file with the settings, and its settings.

    The name is empty if there is no file.
    """
    named = os.environ.get(VARIABLE)
    if named:
        file = os.path.abspath(named)
        try:
            return file, _table_of(file, os.stat(file).st_ctime_ns, is_named=True)
        except OSError as error:
            raise BadOption(f"{file} ({VARIABLE}) cannot be read: {error.strerror}") from error
    try:
        folder = os.getcwd()
    except OSError:
        return "", {}  # The current directory was deleted, so its parents are unknown.
    while True:
        file = os.path.join(folder, "pyproject.toml")
        try:
            # The link's own owner may change, too.
            changed = max(os.stat(file).st_ctime_ns, os.lstat(file).st_ctime_ns)
        except OSError:
            above = os.path.dirname(folder)
            if above == folder:
                return "", {}
            folder = above
        else:
            return file, _table_of(file, changed, is_named=False)


@cache
def _table_of(file: str, _changed: int, *, is_named: bool) -> dict[str, object]:
    text, owners, is_open = _read(file, is_named=is_named)
    if "tool.duly" not in text:
        return {}
    if not is_named:
        _refuse_strangers(file, owners, is_open=is_open)
    import tomllib  # noqa: PLC0415 - only where there is something to read

    try:
        found: object = tomllib.loads(text).get("tool", {}).get("duly", {})
    except tomllib.TOMLDecodeError as error:
        raise BadOption(f"{file} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise BadOption(f"[tool.duly] in {file} must be a table of settings")
    table = {str(name).replace("-", "_"): value for name, value in found.items()}
    url = table.get("url")
    if isinstance(url, str) and re.match("sqlite:///[^/]", url):
        # Makes the path absolute, so that it is one file wherever a program is started.
        table["url"] = f"sqlite:///{os.path.dirname(file)}/{url.removeprefix('sqlite:///')}"
    return table


def _read(file: str, *, is_named: bool) -> tuple[str, set[int], bool]:
    """Return a file's text, the owners of the file and its link, and whether all may write it."""
    try:
        with open(file, encoding="utf-8", opener=_open_at_once) as opened:
            found = os.fstat(opened.fileno())
            if not is_named and not stat.S_ISREG(found.st_mode):
                raise BadOption(f"{file} cannot be read: it is not a regular file")
            owners = {found.st_uid, os.lstat(file).st_uid}
            return opened.read(), owners, is_open_to_all(found)
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{file} cannot be read: {error}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Open a file. A pipe does not wait for its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _refuse_strangers(file: str, owners: set[int], *, is_open: bool) -> None:
    strangers = [owner for owner in owners if not is_trusted_owner(owner)]
    if strangers:
        reason = f"{file} has duly settings and belongs to user {strangers[0]}, who could "
    elif is_open:
        reason = f"{file} has duly settings and every user can write to {file}: another user could "
    else:
        return
    raise BadOption(
        f"{reason}choose the database that you use and the code that you run. If you trust it, set "
        f"{VARIABLE}={file}; to read no such file, set {VARIABLE}=/dev/null"
    )
