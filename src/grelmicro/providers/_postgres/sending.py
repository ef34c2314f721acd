"""How statements are sent: within a time, in READ COMMITTED, and so that a pooler does not mix them up."""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import asyncpg

from grelmicro.errors import ProviderError
from grelmicro.providers._postgres.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Generator

    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]

logger = logging.getLogger("grelmicro.providers.postgres")

_GONE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,
)


def is_closed(connection: Connection) -> bool:
    """Say whether a connection has ended, perhaps while nobody looked."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # it has left the pool's books already


def is_lost(connection: Connection, error: Exception) -> bool:
    """Say whether the error means that the connection is of no more use, and the outcome not known."""
    return isinstance(error, _GONE) or is_closed(connection)


def terminate(connection: Connection) -> None:
    """End a connection whose state is not known. One that has ended may still have to leave its pool."""
    with suppress(asyncpg.InterfaceError):  # it has left
        connection.terminate()


def cannot(what: str, where: str, error: Exception) -> ProviderError:
    """Build the error of something that went wrong, with its cause."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    problem = ProviderError(f"{where} {what}: {reason}")
    problem.__cause__ = error
    return problem


class Sending:
    """Sends statements, each in a transaction of its own, and learns how they have to be sent here.

    Behind a pooler that gives each transaction another server connection (pgbouncer in transaction mode),
    named prepared statements are not used: they would be missing there or, worse, be somebody else's. Such a
    pooler is recognised by the process id that the server has, which is not the one announced to its client.
    """

    def __init__(self, call_timeout: float, *, transaction_pooling: bool | None, where: str) -> None:
        self._overdue: Timeouts[Connection] = Timeouts(call_timeout, terminate)
        self._where = where
        self._anonymous = transaction_pooling
        """Whether statements have no names; None for as long as no pooler was seen."""
        self._explicit = False
        """Whether statements need a transaction that says READ COMMITTED."""
        self._direct: set[int] = set()

    @property
    def is_plain(self) -> bool:
        """Whether a connection's own `fetch` would do the same, but for the time."""
        return not (self._anonymous or self._explicit)

    async def fetch(self, connection: Connection, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Run one statement. Past `call_timeout` the connection is ended."""
        with self._in_time(connection):
            if self._explicit:
                async with connection.transaction(isolation="read_committed"):
                    return await self._fetch(connection, sql, arguments)
            return await self._fetch(connection, sql, arguments)

    async def execute(self, connection: Connection, script: str) -> None:
        """Run a script of statements without arguments, as one transaction. As for the time, see `fetch`."""
        with self._in_time(connection):
            await connection.execute(script)

    def adapt(self, error: Exception) -> bool:
        """Change how statements are sent, if the error tells to; say whether to send this one again."""
        if isinstance(error, asyncpg.SerializationError):
            # READ COMMITTED, on which every statement relies, is not the default here.
            self._explicit = True
            return True
        if isinstance(error, asyncpg.InvalidSQLStatementNameError | asyncpg.DuplicatePreparedStatementError):
            again = not self._anonymous
            self._anonymous = True
            return again
        return False

    async def look_for_pooler(self, connection: Connection) -> None:
        """See whether a connection that was taken leads to a pooler, unless that is known."""
        announced = connection.get_server_pid()
        if self._anonymous is not None or announced in self._direct:
            return
        with self._in_time(connection):
            statement = await connection.prepare("SELECT pg_backend_pid()", name="")
            answered: int = await statement.fetchval()
        if answered == announced:
            self._direct.add(announced)
        else:
            self._anonymous = True
            logger.debug("%s is behind a connection pooler: no named prepared statements", self._where)

    async def _fetch(
        self, connection: Connection, sql: str, arguments: tuple[object, ...]
    ) -> list[asyncpg.Record]:
        if self._anonymous:
            # No Sync separates its preparation from its use, so a pooler cannot part them.
            return await (await connection.prepare(sql, name="")).fetch(*arguments)
        return await connection.fetch(sql, *arguments)

    @contextmanager
    def _in_time(self, connection: Connection) -> Generator[None]:
        self._overdue.add(connection)
        try:
            yield
        finally:
            self._overdue.discard(connection)
