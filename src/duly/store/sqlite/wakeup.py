"""Wake-up hints across processes: after each commit, a datagram to sockets in the store's folder.

A hint may be lost; polling finds the run anyway. Commits on connections outside duly send no hint,
so a listener also checks the file's time ten times a second. Twenty checks a second would cost an
idle worker as much as all its other work.
"""

import contextlib
import os
import socket
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from duly.clock import new_id
from duly.file_owners import distrusted_part

_LOOK_SECONDS = 0.1
_SOCKET_PATH_BYTES = 100


class SqliteHints:
    """Sends and receives hints for one store."""

    def __init__(self, folder: Path, watched: tuple[Path, ...]) -> None:
        self._folder = folder
        self._folder_path = str(folder)
        self._watched = tuple(map(str, watched))
        self._here: list[Callable[[], None]] = []
        self._listed_at = -1
        self._sockets: list[str] = []
        self._sender: socket.socket | None = None
        self.own_commits = 0
        """The number of this process's own commits, which also change the file's time."""
        self._mutex = threading.Lock()

    def send(self) -> None:
        """Send a hint to every listener, in this process and in others."""
        for woken in tuple(self._here):
            woken()
        # A failed hint must not fail the write, even if this process has no descriptor left.
        with self._mutex, contextlib.suppress(OSError):
            for path in self._others():
                if self._sender is None:
                    self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    self._sender.setblocking(False)  # noqa: FBT003 - the standard library's
                try:
                    self._sender.sendto(b"!", path)
                except BlockingIOError:
                    pass  # The listener has unread hints in its buffer, so it will wake anyway.
                except OSError:
                    with contextlib.suppress(OSError):
                        Path(path).unlink()  # Its process has ended.

    def close(self) -> None:
        """Close the socket that sends hints."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def listen(self, woken: Callable[[], None]) -> Callable[[], None]:
        """Call `woken` at every hint until the returned function is called."""
        ending = threading.Event()
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = _short(self._folder / f"{new_id()[-12:]}-{os.getpid()}.sock")
        receiver.bind(path)
        receiver.settimeout(_LOOK_SECONDS)
        self._here.append(woken)
        thread = threading.Thread(
            target=self._receive, args=(receiver, woken, ending), name="duly-listener", daemon=True
        )
        thread.start()

        def end() -> None:
            ending.set()
            self._here.remove(woken)
            # Without this hint, the join would wait until the listener checks the file again.
            _poke(path)
            thread.join()
            receiver.close()
            with contextlib.suppress(OSError):
                Path(path).unlink()

        return end

    def _receive(
        self, receiver: socket.socket, woken: Callable[[], None], ending: threading.Event
    ) -> None:
        seen, commits, changed = self._look(), self.own_commits, False
        while not ending.is_set():
            try:
                receiver.recv(16)
            except TimeoutError:
                found = self._look()
                changed = changed or found != seen
                # A commit of another process cannot be detected among our own commits. So the
                # listener checks again when our commits pause.
                is_ours, commits = self.own_commits != commits, self.own_commits
                seen = found
                if not changed or is_ours:
                    continue
            else:
                seen = self._look()
            changed = False
            if not ending.is_set():
                woken()

    def _look(self) -> list[int]:
        found = []
        for path in self._watched:
            try:
                found.append(os.stat(path).st_mtime_ns)  # noqa: PTH116 - ten times a second
            except OSError:
                found.append(0)
        return found

    def _others(self) -> list[str]:
        """Return the other processes' sockets. The folder is listed again only after a change."""
        try:
            found = os.lstat(self._folder_path)  # Runs after every commit; pathlib is slower.
        except FileNotFoundError:
            return []
        changed_at = found.st_mtime_ns
        if changed_at != self._listed_at:
            if not stat.S_ISDIR(found.st_mode) or distrusted_part(self._folder_path):
                # The sender removes sockets that do not answer, and these are not ours.
                return []
            mine = f"-{os.getpid()}.sock"
            self._sockets = [
                _short(self._folder / name)
                for name in os.listdir(self._folder)  # noqa: PTH208 - names are all we need
                if name.endswith(".sock") and not name.endswith(mine)
            ]
            self._listed_at = changed_at
        return self._sockets


def _poke(path: str) -> None:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)  # noqa: FBT003 - the standard library's
        sender.sendto(b"!", path)


_folders: dict[Path, int] = {}


def _short(path: Path) -> str:
    """Return a path that fits a socket address. A long path is shortened by an open folder."""
    if len(os.fsencode(path)) <= _SOCKET_PATH_BYTES:
        return str(path)
    return f"/proc/self/fd/{_opened(path.parent)}/{path.name}"


def _opened(folder: Path) -> int:
    """Return the descriptor of a folder.

    The number of the descriptor is part of the paths of sockets. So a folder that was removed and
    created again keeps its number.
    """
    known = _folders.get(folder)
    if known is None or not os.path.samestat(os.fstat(known), folder.stat()):
        found = os.open(folder, os.O_DIRECTORY | os.O_RDONLY | os.O_CLOEXEC)
        if known is None:
            _folders[folder] = found
        else:
            os.dup2(found, known, inheritable=False)
            os.close(found)
    return _folders[folder]
