"""Pgbouncer from the system, in front of PostgreSQL."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from typing import TYPE_CHECKING, Any

from tests.support._process import HOST, Server, ServerUnavailableError, answers, unprivileged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support._postgres import PostgresServer

SSL_REQUEST = struct.pack("!ii", 8, 80877103)


def _binary() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        message = "no pgbouncer on this machine"
        raise ServerUnavailableError(message)
    return found


class PgBouncer(Server):
    """Transaction-mode pgbouncer with a small pool; it passes every database of the server through."""

    def __init__(
        self, postgres: PostgresServer, *, pool_size: int = 2, pool_mode: str = "transaction"
    ) -> None:
        self._postgres = postgres
        self._pool_size = pool_size
        self._pool_mode = pool_mode
        super().__init__()

    def _prepare(self) -> None:
        _binary()
        (self.directory / "users").write_text('"postgres" ""\n')
        self._write_configuration()
        arguments = self._popen_arguments()
        if arguments:
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, arguments["user"], arguments["group"])

    def _write_configuration(self) -> None:
        (self.directory / "pgbouncer.ini").write_text(
            f"""[databases]
* = host={HOST} port={self._postgres.port}
[pgbouncer]
listen_addr = {HOST}
listen_port = {self.port}
unix_socket_dir = {self.directory}
auth_type = trust
auth_file = {self.directory}/users
admin_users = postgres
pool_mode = {self._pool_mode}
default_pool_size = {self._pool_size}
max_client_conn = 1000
server_login_retry = 1
"""
        )

    def _popen_arguments(self) -> dict[str, Any]:
        return unprivileged()

    def _command(self) -> Sequence[object]:
        self._write_configuration()
        return [_binary(), self.directory / "pgbouncer.ini"]

    def _ready(self) -> bool:
        return answers(self.directory / f".s.PGSQL.{self.port}", SSL_REQUEST, b"N")

    @property
    def version(self) -> str:
        """What runs here."""
        done = subprocess.run([_binary(), "--version"], check=True, capture_output=True, text=True)
        return done.stdout.splitlines()[0]

    @property
    def url(self) -> str:
        """The address that the library takes, of the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """Return the address of a database."""
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"
