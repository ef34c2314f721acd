"""The life of one server process."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

HOST = "127.0.0.1"
START_TIMEOUT = 20.0
STOP_TIMEOUT = 5.0
ATTEMPTS = 5

# Ends the server when this process goes away without a chance to clean up: its end of the pipe closes.
_WATCHDOG = 'read -r line; kill -CONT "$1"; kill -"$2" "$1"; sleep 1; rm -rf "$3"'


class ServerUnavailableError(Exception):
    """This machine lacks what the server needs; the message says what."""


def private_directory() -> Path:
    """Make a directory that other users can pass through, short enough for a socket path."""
    parent = "/tmp" if os.access("/tmp", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="grel-", dir=parent))
    directory.chmod(0o711)
    return directory


def free_port() -> int:
    """Find a port below the range of outgoing connections.

    Inside that range a client that reconnects to a stopped server can be given the server's port, or connect
    to itself.
    """
    for _ in range(100):
        port = 12_000 + secrets.randbelow(20_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    message = "no free port found"
    raise ServerUnavailableError(message)


def unprivileged() -> dict[str, Any]:
    """Return the arguments that make Popen leave root behind: some servers refuse to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def answers(path: Path, request: bytes, *replies: bytes) -> bool:
    """Tell whether the server behind a socket file sends one of the replies.

    A socket in our own directory can only be our own server, unlike a port.
    """
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(request)
            return connection.recv(64).startswith(replies)
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str, timeout: float = START_TIMEOUT) -> None:
    """Wait for a condition of the outside world."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            message = f"not within {timeout} s: {what}"
            raise TimeoutError(message)
        time.sleep(0.01)


class Server(ABC):
    """One server process in a private directory, on one port for its whole life.

    It runs from construction to `close()`, which the context manager calls.
    """

    start_timeout = START_TIMEOUT
    stop_signal = signal.SIGTERM
    last_resort = "KILL"

    def __init__(self) -> None:
        self.directory = private_directory()
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        try:
            self._prepare()
            self._start_on_free_port()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _command(self) -> Sequence[object]:
        """Return the command line."""

    @abstractmethod
    def _ready(self) -> bool:
        """Tell whether the server serves."""

    def _prepare(self) -> None:  # noqa: B027
        """Lay out the directory, before the first start."""

    def _popen_arguments(self) -> dict[str, Any]:
        return {}

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as the proxy wants them."""
        return HOST, self.port

    @property
    def pid(self) -> int:
        """The process to send signals to."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive (a paused one is)."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that the server has printed."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self) -> None:
        """Start a stopped or killed server, on its port and with the data it left."""
        assert not self.running, "the server is running"
        command = [str(part) for part in self._command()]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
                **self._popen_arguments(),
            )
        self._watch()
        deadline = time.monotonic() + self.start_timeout
        while not self._ready():
            if not self.running or time.monotonic() > deadline:
                message = f"{command[0]} did not start (exit code {self._process.poll()})\n{self.log[-2000:]}"
                self.kill()
                raise RuntimeError(message)
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server in its own orderly way."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server with SIGKILL."""
        self._end(signal.SIGKILL)

    def signal(self, number: int) -> None:
        """Send a signal to the server, and to its children where work is done there."""
        os.kill(self.pid, number)

    def pause(self) -> None:
        """Freeze the server with SIGSTOP: connections stay open and nothing answers."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        self.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze the server for the length of a block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def restart(self, *, keep_data: bool = True) -> None:
        """Stop and start on the same port, with the data of before or as on the first day."""
        if keep_data:
            self._save()
            self.stop()
        else:
            self.kill()
            self._erase()
            self._prepare()
        self.start()

    def close(self) -> None:
        """End the server and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _save(self) -> None:  # noqa: B027
        """Write to disk what a stop would lose."""

    def _erase(self) -> None:
        """Remove all that `_prepare` and the server wrote."""
        for path in self.directory.iterdir():
            if path.name == "log":
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _start_on_free_port(self) -> None:
        for attempt in range(ATTEMPTS):
            try:
                return self.start()
            except RuntimeError as error:
                if "in use" not in str(error) or attempt == ATTEMPTS - 1:
                    raise
                self.port = free_port()
        return None

    def _end(self, number: int) -> None:
        if self._process is None:
            return
        if self.running:
            self.resume()
            self.signal(number)
            try:
                self._process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None
        self._unwatch()

    def _watch(self) -> None:
        self._unwatch()
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, "watchdog", str(self.pid), self.last_resort, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _unwatch(self) -> None:
        if self._watchdog is None:
            return
        self._watchdog.kill()
        self._watchdog.wait()
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._watchdog = None
