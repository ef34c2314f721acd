"""The connections of an open provider: taken, used, given back or thrown away, each within `call_timeout`."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from grelmicro.errors import OutOfContextError, ProviderError
from grelmicro.providers._postgres.timeouts import Timeouts

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]
    Pool = asyncpg.Pool[asyncpg.Record]

logger = logging.getLogger("grelmicro.providers.postgres")

_LINGER = 1.0
"""Seconds for which one idle connection is kept at hand before it goes back to the pool."""

_GONE = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.InternalClientError,
    asyncpg.ProtocolViolationError,
)


def is_closed(connection: Connection) -> bool:
    """Say whether a connection has ended, perhaps while nobody looked."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:
        return True  # it has left the pool's books already


def terminate(connection: Connection) -> None:
    """End a connection, and have it leave its pool if it is in there."""
    with suppress(asyncpg.InterfaceError):  # it has left
        connection.terminate()


class Resets:
    """Resets the session of a connection that somebody else used: no statement of ours changes it."""

    def __init__(self) -> None:
        self._spared: set[int] = set()

    def spare(self, connection: Connection) -> None:
        """Spare the next release of this connection the round trip."""
        self._spared.add(connection.get_server_pid())

    async def __call__(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        """Reset, as asyncpg's pool does by default."""
        pid = connection.get_server_pid()
        if pid in self._spared:
            self._spared.discard(pid)
        else:
            await connection.execute(connection.get_reset_query())


class Connections:
    """What an open provider lends to its adapters. Bound to the event loop and process that it was made in.

    Behind a pooler that gives each transaction another server connection (pgbouncer in transaction mode),
    named prepared statements are not used: they would be missing there or, worse, be somebody else's. A
    pooler is recognised by the process id that the server has, which is not the one announced to its client.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        resets: Resets | None,
        call_timeout: float,
        transaction_pooling: bool | None,
        where: str,
    ) -> None:
        self.pool = pool
        self.call_timeout = call_timeout
        self.where = where
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[None]] = set()
        self._overdue: Timeouts[Connection] = Timeouts(call_timeout, terminate)
        self._anonymous = transaction_pooling
        self._direct: set[int] = set()
        self._explicit = False
        self._waiting = 0
        self._kept: Connection | None = None
        self._kept_since = 0.0
        self._linger: asyncio.TimerHandle | None = None
        self._resets = resets
        self._keeps = resets is not None and pool.get_max_size() > 1
        self._closing = False
        self._driven = 0
        self._drained: asyncio.Future[None] | None = None

    def require_here(self) -> None:
        """Refuse use where the sockets may not be touched.

        Raises:
            OutOfContextError: this is another event loop, no event loop, or a forked child.
        """
        if os.getpid() != self._pid:
            raise OutOfContextError(
                "PostgresProvider was opened before this process was forked, and a connection cannot be "
                "shared: open a provider in the child instead"
            )
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if not here:
            raise OutOfContextError(
                "PostgresProvider was opened on another event loop: use it there (from a thread: through "
                "from_thread), or open another one here"
            )
        if self._closing:
            raise OutOfContextError("PostgresProvider is being closed")

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that uses connections, in a task that closing waits for."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def begin(self) -> None:
        """Count something under way outside of a task, which closing waits for."""
        self._driven += 1

    def end(self) -> None:
        """Count it off, before what follows from it is started."""
        self._driven -= 1
        if self._drained is not None and not (self._driven or self._drained.done()):
            self._drained.set_result(None)

    async def take(self) -> Connection:
        """Borrow a connection, made if need be. Give it back, or drop it."""
        kept = self.take_kept()
        if kept is not None:
            return kept
        for last in (False, True):
            self._waiting += 1
            try:
                connection = await self.pool.acquire(timeout=self.call_timeout)
            finally:
                self._waiting -= 1
            if self._anonymous is not None or connection.get_server_pid() in self._direct:
                return connection
            try:
                await self._look_for_pooler(connection)
            except BaseException as error:
                self.drop(connection)
                if last or not isinstance(error, _GONE):
                    raise
                await self.distrust()
            else:
                return connection
        raise AssertionError("the last turn ends the loop")

    def take_kept(self) -> Connection | None:
        """Borrow the connection that is at hand, if there is one. Give or keep it, or drop it."""
        kept, self._kept = self._kept, None
        if kept is not None and is_closed(kept):
            self.drop(kept)
            return None
        return kept

    @property
    def is_plain(self) -> bool:
        """Whether a statement may be sent by a connection's `fetch`."""
        return not (self._anonymous or self._explicit)

    async def give(self, connection: Connection) -> None:
        """Give back a connection whose last statement ended as it should, or by an error of the server's."""
        if not self._keep(connection):
            await self._release(connection)

    def keep(self, connection: Connection) -> None:
        """Give back a connection without waiting until that is done."""
        if not self._keep(connection):
            self.start(self._release(connection))

    def _keep(self, connection: Connection) -> bool:
        if not self._keeps or self._kept is not None or self._waiting or self._closing:
            return False
        self._kept, self._kept_since = connection, self._loop.time()
        if self._linger is None:
            self._linger = self._loop.call_later(_LINGER, self._stop_keeping)
        return True

    def drop(self, connection: Connection) -> None:
        """End a connection whose state is not known. One that has ended may still have to leave the pool."""
        terminate(connection)

    def is_lost(self, connection: Connection, error: Exception) -> bool:
        """Say whether the error means that the connection is of no more use, and the outcome not known."""
        return isinstance(error, _GONE) or is_closed(connection)

    async def distrust(self) -> None:
        """Let no connection made until now be taken again: one of them was lost."""
        await self.pool.expire_connections()
        if self._kept is not None:
            kept, self._kept = self._kept, None
            await self._release(kept)

    async def fetch(self, connection: Connection, sql: str, *arguments: object) -> list[asyncpg.Record]:
        """Run one statement in a transaction of its own. Past `call_timeout` the connection is ended."""
        self._overdue.add(connection)
        try:
            if self._explicit:
                async with connection.transaction(isolation="read_committed"):
                    return await self._fetch(connection, sql, arguments)
            return await self._fetch(connection, sql, arguments)
        finally:
            self._overdue.discard(connection)

    async def execute(self, connection: Connection, script: str) -> None:
        """Run a script of statements without arguments, as one transaction."""
        self._overdue.add(connection)
        try:
            await connection.execute(script)
        finally:
            self._overdue.discard(connection)

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

    async def aclose(self) -> None:
        """Let what was begun end, for up to `call_timeout`, then end the rest."""
        self._closing = True
        end = self._loop.time() + self.call_timeout
        try:
            while (self._driven or self._tasks) and (left := end - self._loop.time()) > 0:
                self._drained = self._loop.create_future()
                work = {*self._tasks, self._drained} if self._driven else self._tasks
                await asyncio.wait(work, timeout=left)
        finally:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._linger is not None:
            self._linger.cancel()
        if self._kept is not None:
            kept, self._kept = self._kept, None
            await self._release(kept)

    async def _fetch(
        self, connection: Connection, sql: str, arguments: tuple[object, ...]
    ) -> list[asyncpg.Record]:
        if self._anonymous:
            # No Sync separates its preparation from its use, so a pooler cannot part them.
            return await (await connection.prepare(sql, name="")).fetch(*arguments)
        return await connection.fetch(sql, *arguments)

    async def _look_for_pooler(self, connection: Connection) -> None:
        self._overdue.add(connection)
        try:
            statement = await connection.prepare("SELECT pg_backend_pid()", name="")
            answered: int = await statement.fetchval()
        finally:
            self._overdue.discard(connection)
        announced = connection.get_server_pid()
        if answered == announced:
            self._direct.add(announced)
        elif self._anonymous is None:
            self._anonymous = True
            logger.debug("%s is behind a connection pooler: no named prepared statements", self.where)

    async def _release(self, connection: Connection) -> None:
        if self._resets is not None and not is_closed(connection):
            self._resets.spare(connection)
        try:
            await self.pool.release(connection, timeout=self.call_timeout)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            # The last is what the pool says of a connection that was lost, and so left its books by itself.
            logger.debug("A connection could not be reset and was ended", exc_info=True)

    def _stop_keeping(self) -> None:
        self._linger = None
        if self._kept is None:
            return
        left = self._kept_since + _LINGER - self._loop.time()
        if left > 0:
            self._linger = self._loop.call_later(left, self._stop_keeping)
            return
        kept, self._kept = self._kept, None
        self.start(self._release(kept))


def cannot(what: str, where: str, error: Exception) -> ProviderError:
    """Build the error of something that went wrong, with its cause."""
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    problem = ProviderError(f"{where} {what}: {reason}")
    problem.__cause__ = error
    return problem
