"""TLS in front of a server that has none, in a process of its own."""

from __future__ import annotations

import socket
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

from tests.support._process import HOST, Server

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


def make_certificates(directory: Path) -> tuple[Path, Path]:
    """Write an authority's certificate and a server's key with chain; return both paths."""
    authority = trustme.CA()
    ca_file, server_file = directory / "ca.pem", directory / "server.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    authority.issue_cert(HOST, "localhost").private_key_and_cert_chain_pem.write_to_path(str(server_file))
    return ca_file, server_file


class TlsFront(Server):
    """Accepts TLS and passes the plain stream on to the target."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        super().__init__()

    def _prepare(self) -> None:
        self.ca_file, self._server_file = make_certificates(self.directory)

    def _command(self) -> Sequence[object]:
        host, port = self._target
        return [
            sys.executable,
            Path(__file__).with_name("proxy.py"),
            host,
            port,
            self.port,
            self._server_file,
        ]

    def _ready(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with (
                socket.create_connection(self.address, timeout=1) as plain,
                context.wrap_socket(plain, server_hostname=HOST),
            ):
                return True
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The address of a Redis server behind, certificate authority included."""
        return f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={self.ca_file}"
