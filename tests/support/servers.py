"""Real servers for the tests, each on a free port in a directory of its own."""

from tests.support._pgbouncer import PgBouncer
from tests.support._postgres import PostgresServer
from tests.support._process import Server, ServerUnavailableError
from tests.support._tls import TlsFront
from tests.support._valkey import ValkeyCluster, ValkeySentinel, ValkeyServer

__all__ = [
    "PgBouncer",
    "PostgresServer",
    "Server",
    "ServerUnavailableError",
    "TlsFront",
    "ValkeyCluster",
    "ValkeySentinel",
    "ValkeyServer",
]
