"""Which files are trusted on a machine with several users."""

import os
import stat

ROOT = 0


def is_trusted_owner(owner: int) -> bool:
    """Return whether it is this process's user, root, or the user who became root with sudo."""
    if owner in {os.geteuid(), ROOT}:
        return True
    return os.geteuid() == ROOT and str(owner) == os.environ.get("SUDO_UID")


def is_open_to_all(found: os.stat_result) -> bool:
    """Return whether every user may write it. The mode of a symbolic link has no meaning."""
    return bool(found.st_mode & stat.S_IWOTH) and not stat.S_ISLNK(found.st_mode)


def distrusted_part(path: str) -> str | None:
    """Return a sentence about the part of a path that a stranger may control, or None.

    In a directory that every user may write, such as /tmp, any user can be the first to create a
    name. The owner of a directory that is closed to others decides what it contains.
    """
    # pathlib is slow to import, and every program reads settings.
    for place in dict.fromkeys((path, os.path.realpath(path))):
        part = place
        while (folder := os.path.dirname(part)) != part:  # noqa: PTH120
            sentence = _distrusted(part, folder)
            if sentence is not None:
                return sentence
            part = folder
    return None


def _distrusted(part: str, folder: str) -> str | None:
    try:
        found, around = os.lstat(part), os.stat(folder)  # noqa: PTH116
    except OSError:
        return None  # It is missing, or cannot be opened either.
    if not is_open_to_all(around):
        return None
    if not is_trusted_owner(found.st_uid):
        # Directories such as /tmp have the sticky bit, and must stay open to all.
        or_close = (
            ""
            if around.st_mode & stat.S_ISVTX
            else f", or, if you trust that user, run `chmod o-w {folder}`"
        )
        return (
            f"{part} belongs to user {found.st_uid}, who may have planted it: every user can "
            f"create files in {folder}. Keep the database in its own folder{or_close}"
        )
    if is_open_to_all(found) and not stat.S_ISDIR(found.st_mode):
        return (
            f"every user can write to {part}, in a folder where every user can create files: run "
            f"`chmod o-w {part}`"
        )
    return None
