"""Files and folders next to a database. None may be a link or belong to another user."""

import errno
import os
import stat
from pathlib import Path

from duly.errors import StoreRefused
from duly.file_owners import distrusted_part


def check_private(path: Path) -> None:
    """Refuse a path that is no file and no folder, or that another user made or can change."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        mode = stat.S_IFREG  # The path is missing, or cannot be opened either.
    if stat.S_ISLNK(mode):
        raise StoreRefused(f"{path} is a symbolic link, which duly does not follow; remove it")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise StoreRefused(f"{path} is not a regular file; remove it")
    sentence = distrusted_part(str(path))
    if sentence is not None:
        raise StoreRefused(sentence)


def make_private_folder(path: Path) -> None:
    """Create a folder with access for its owner only, unless it exists."""
    check_private(path)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:
        raise StoreRefused(f"{path} is not a folder; remove it") from error
    # Another process may have created it first.
    check_private(path)


def open_private(path: Path, flags: int) -> int:
    """Open a file, or create it with access for its owner only. Refuse a symbolic link."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            check_private(path)
        raise
