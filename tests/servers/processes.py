"""The needs of every test server: a user, a folder, a port and a guaranteed end.

Run as a program, this file is the watcher that ends the servers of a killed test process.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Protocol, TypedDict

# Below Linux's range for outgoing connections, so that no client takes the port of a server that
# restarts.
FIRST_PORT, LAST_PORT = 10_240, 32_767
# The path of a socket has at most about 100 bytes, including the names inside the folder.
LONGEST_FOLDER = 60
LAST_WORDS_SECONDS = 5.0


class ServerFolder:
    """A temporary folder for one server. Neither outlives the tests.

    A watcher waits on a pipe from this process. When this process ends, even by kill -9, the pipe
    closes. Then the watcher ends the server and removes the folder.
    """

    def __init__(self, name: str) -> None:
        self._account = server_account()
        parent = _folder_open_to(self._account)
        self.path = Path(tempfile.mkdtemp(prefix=f"duly-{name}-", dir=parent))
        self.hand_over(self.path)
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", __file__, str(self.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, command: Sequence[str | Path]) -> str:
        """Run a command to its end as the server's user. Return its output."""
        done = subprocess.run(
            command,
            check=False,
            cwd=self.path,
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **self._account,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def spawn(self, command: Sequence[str | Path], *, log: Path) -> subprocess.Popen[bytes]:
        """Start a server as the server's user, in its own session, under the watcher."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **self._account,
            )
        self._tell_watcher("watch", process.pid)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for a server that is ending, and stop watching its process id."""
        process.wait(timeout=60)
        self._tell_watcher("forget", process.pid)

    def hand_over(self, path: Path) -> None:
        """Give a file or folder to the server's user."""
        if self._account:
            os.chown(path, self._account["user"], self._account["group"], follow_symlinks=False)

    def within_reach(self, path: Path) -> bool:
        """Return whether the server's user can reach a path. A home folder is often private."""
        return not self._account or _is_open_to_all(path)

    def close(self) -> None:
        """End the watcher, which ends all programs in the folder and removes the folder."""
        self._watcher.communicate()

    def _tell_watcher(self, verb: str, pid: int) -> None:
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(f"{verb} {pid}\n".encode())
        self._watcher.stdin.flush()


class Process(Protocol):
    """A process that a test has started, by `subprocess` or otherwise."""

    pid: int

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status."""


class Account(TypedDict, total=False):
    """Options of `subprocess` to start a program as another user. Empty for the current user."""

    user: int
    group: int
    extra_groups: list[str | int]


def server_account() -> Account:
    """Return the account that servers run as. Servers refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise RuntimeError("running as root, and neither 'postgres' nor 'nobody' is an account here")


def free_port() -> int:
    """Return an unused loopback port.

    It uses `secrets`: every test process seeds `random` alike and would choose the same port.
    """
    while True:
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT + 1)
        with closing(socket.socket()) as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Wait until a condition holds. Raise TimeoutError if it never does."""
    deadline = time.monotonic() + seconds
    looked_at = time.monotonic()
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain: {what}")
        # An expensive condition is checked rarely, because it would slow down the awaited process.
        time.sleep(min(0.1, max(0.01, 8 * (now - looked_at))))
        looked_at = time.monotonic()


def kill_with_children(process: Process, *, seconds: float = 30.0) -> None:
    """SIGKILL a process and its children, and return when all of them have ended."""
    # A stopped process starts no child that the list would miss.
    os.kill(process.pid, signal.SIGSTOP)
    wait_until(
        lambda: _states().get(process.pid, (0, "Z"))[1] in "TZ",
        seconds=seconds,
        what=f"process {process.pid} stops",
    )
    children = children_of(process.pid)
    for pid in (process.pid, *children):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait(timeout=seconds)
    wait_until(
        lambda: not any(is_running(pid) for pid in children),
        seconds=seconds,
        what=f"the children of process {process.pid} end",
    )


def children_of(process: int) -> list[int]:
    """Return the children of a process."""
    return [pid for pid, (parent, _) in _states().items() if parent == process]


def is_running(pid: int) -> bool:
    """Return whether a process is running. A zombie has ended."""
    _, state = _states().get(pid, (0, "Z"))
    return state != "Z"


def _states() -> dict[int, tuple[int, str]]:
    """Return all processes: id -> (id of the parent, letter of the state)."""
    return {pid: (parent, state) for pid, parent, state in _process_table()}


def _process_table() -> Iterator[tuple[int, int, str]]:
    if not Path("/proc/self/stat").exists():
        listing = subprocess.run(
            ["ps", "-A", "-o", "pid=,ppid=,stat="], check=True, capture_output=True, text=True
        )
        for line in listing.stdout.splitlines():
            pid, parent, state = line.split()
            yield int(pid), int(parent), state[0]
        return
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            # The second field is the command's name in parentheses, which may contain blanks.
            state, parent, *_ = entry.read_text().rpartition(")")[2].split()
            yield int(entry.parent.name), int(parent), state


def _environment() -> dict[str, str]:
    """Remove the caller's PostgreSQL settings from the environment of a private server."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _folder_open_to(account: Account) -> Path:
    for candidate in (Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        fits = len(str(candidate)) <= LONGEST_FOLDER
        if fits and candidate.is_dir() and (not account or _is_open_to_all(candidate)):
            return candidate
    raise RuntimeError("no temporary folder with a short path that the server's user may enter")


def _is_open_to_all(path: Path) -> bool:
    absolute = path.resolve()
    folders = [absolute, *absolute.parents] if absolute.is_dir() else list(absolute.parents)
    return all(folder.stat().st_mode & 0o001 for folder in folders)


def _watch(folder: Path) -> None:
    watched: set[int] = set()
    for line in sys.stdin:
        verb, pid = line.split()
        if verb == "watch":
            watched.add(int(pid))
        else:
            watched.discard(int(pid))
    # The pipe has closed. PostgreSQL frees its shared memory on SIGQUIT, not on SIGKILL.
    for sent in (signal.SIGQUIT, signal.SIGKILL):
        for pid in watched:
            with suppress(ProcessLookupError):
                os.kill(pid, sent)
        with suppress(TimeoutError):
            wait_until(
                lambda: not any(is_running(pid) for pid in watched),
                seconds=LAST_WORDS_SECONDS,
                what="the servers end",
            )
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
