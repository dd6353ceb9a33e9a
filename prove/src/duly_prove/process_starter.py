"""Starts the programs of a trial, each as a new interpreter or as a fork of one process.

An interpreter needs a quarter of a second of CPU time for its imports, a fork a hundredth of that.
A fork is the same program in a separate process, and is killed and reaped in the same way. The
process that forks has everything imported and nothing open: no thread and no connection.
"""

import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, Protocol, Self

from duly.worker.process_lifetime import die_with_parent, exit_now

_IMPORTED = (
    "duly.app",
    "duly_prove.claimer_process",
    "duly_prove.supervisor_process",
    "duly_prove.racer_process",
    "duly.worker.embedded_worker",
    "duly.store.postgres.store",
    "duly.store.sqlite.store",
)
"""The modules that programs need.

None of them reads the environment on import, as the workload does. Each program imports the
workload itself.
"""

_ORDER_BYTES = 1 << 17
_MOST_FILES = 8

Stream = int | IO[Any] | None
"""As for `subprocess.Popen`: PIPE, DEVNULL, a file, or None to inherit the stream."""


class StartedProcess(Protocol):
    """The part of a process that trials use. `subprocess.Popen` implements it."""

    stdin: IO[str] | None
    stdout: IO[str] | None

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def communicate(self, *, timeout: float | None = None) -> tuple[Any, Any]: ...


class ProcessStarter(Protocol):
    """Starts programs, which are modules with a `main`."""

    forks: bool
    """Whether started programs have everything imported."""

    @property
    def parent(self) -> int:
        """The process whose death must end the started programs."""
        ...

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
    ) -> StartedProcess:
        """Start a program in its own session."""
        ...


class InterpreterStarter:
    """Starts each program as users do."""

    forks = False

    @property
    def parent(self) -> int:
        """This process."""
        return os.getpid()

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
    ) -> StartedProcess:
        """Start a program."""
        return subprocess.Popen(  # noqa: S603 - this interpreter, our own module
            [sys.executable, "-m", program, *arguments],
            env=os.environ | dict(environment),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            start_new_session=True,
            text=True,
            bufsize=1,
        )


class ForkStarter:
    """Starts programs as forks of one process, on Linux. Use it as a context manager."""

    forks = True

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, our own module
                [sys.executable, "-m", __name__, str(os.getpid()), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()
        self._process.wait()

    @property
    def parent(self) -> int:
        """The process that forks all programs. It dies with this process."""
        return self._process.pid

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        pass_fds: Sequence[int] = (),
    ) -> StartedProcess:
        """Start a program."""
        streams = [_ForkStream(place, each) for place, each in enumerate((stdin, stdout, stderr))]
        order = {
            "program": program,
            "arguments": list(arguments),
            "environment": os.environ | dict(environment),
            "descriptors": [0, 1, 2, *pass_fds],
        }
        pid = self.ask(order, [*(stream.theirs for stream in streams), *pass_fds])
        for stream in streams:
            stream.close()
        return ForkedProcess(self, pid, streams[0].ours, streams[1].ours)

    def ask(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Request the start of a program or the reaping of one. Return its pid or status."""
        socket.send_fds(self._channel, [json.dumps(order).encode()], descriptors)
        answer = self._channel.recv(_ORDER_BYTES)
        if not answer:
            message = f"the process that forks ended by itself, with status {self._process.wait()}"
            raise RuntimeError(message)
        return int(answer)


class ForkedProcess:
    """A process forked by another of our processes, with the interface of `Popen`."""

    def __init__(
        self, forks: ForkStarter, pid: int, stdin: IO[str] | None, stdout: IO[str] | None
    ) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._forks = forks
        # Only `wait` below reaps it, so the kernel cannot have reused its pid yet.
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end, and return its exit status."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = self._forks.ask({"ended": self.pid})
            os.close(self._end)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def communicate(self, *, timeout: float | None = None) -> tuple[Any, Any]:
        """Close its stdin, read all its output, and wait for its end."""
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                self.stdin.close()
        printed = None
        if self.stdout is not None:
            with self.stdout:
                printed = self.stdout.read()
        self.wait(timeout)
        return printed, None


class _ForkStream:
    """One of the three standard streams of a forked program."""

    def __init__(self, place: int, given: Stream) -> None:
        self.ours: IO[str] | None = None
        self._is_to_close = given in {subprocess.PIPE, subprocess.DEVNULL}
        match given:
            case subprocess.PIPE if place == 0:
                self.theirs, writer = os.pipe()
                self.ours = os.fdopen(writer, "w", buffering=1)
            case subprocess.PIPE:
                reader, self.theirs = os.pipe()
                self.ours = os.fdopen(reader)
            case subprocess.DEVNULL:
                self.theirs = os.open(os.devnull, os.O_RDWR)
            case None:
                self.theirs = place
            case int():
                self.theirs = given
            case _:
                self.theirs = given.fileno()

    def close(self) -> None:
        """Close the file that only the program should keep open."""
        if self._is_to_close:
            os.close(self.theirs)


def main() -> None:
    """Fork programs on request, until the requesting process has ended."""
    parent, descriptor = map(int, sys.argv[1:])
    die_with_parent(parent)
    for module in _IMPORTED:
        import_module(module)
    gc.collect()
    gc.freeze()
    channel = socket.socket(fileno=descriptor)
    while True:
        text, descriptors, *_ = socket.recv_fds(channel, _ORDER_BYTES, _MOST_FILES)
        if not text:
            return
        order = json.loads(text)
        if "ended" in order:
            _, status = os.waitpid(order["ended"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                channel.close()
                _run(order, descriptors)
        for each in descriptors:
            os.close(each)
        channel.send(b"%d" % answer)


def _run(order: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Run a program in this process, and exit with its status."""
    status: Any = 1
    try:
        os.setsid()
        _take(descriptors, order["descriptors"])
        os.environ.clear()
        os.environ.update(order["environment"])
        sys.path += os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = [order["program"], *order["arguments"]]
        status = import_module(order["program"]).main()
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:  # noqa: BLE001 - printed, and reported by the status
        traceback.print_exc()
    exit_now(status or 0)


def _take(descriptors: Sequence[int], places: Sequence[int]) -> None:
    """Move files to the descriptors that a program expects."""
    free = max(places) + 1
    aside = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, free) for each in descriptors]
    for each in descriptors:
        os.close(each)
    for each, place in zip(aside, places, strict=True):
        os.dup2(each, place)
        os.close(each)


if __name__ == "__main__":
    main()
