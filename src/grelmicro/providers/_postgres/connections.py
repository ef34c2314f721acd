"""The connections of an open provider: taken, used, given back or thrown away, each within `call_timeout`."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import asyncpg

from grelmicro.errors import OutOfContextError
from grelmicro.providers._here import Here
from grelmicro.providers._postgres.sending import Sending, is_closed, is_lost, terminate

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from grelmicro.providers._postgres.resets import Resets
    from grelmicro.providers._postgres.sending import Connection

    Pool = asyncpg.Pool[asyncpg.Record]

logger = logging.getLogger("grelmicro.providers.postgres")

_LINGER = 1.0
"""Seconds for which one idle connection is kept at hand before it goes back to the pool."""


class Connections:
    """What an open provider lends to its adapters, on the event loop and in the process of its opening."""

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
        self.sending = Sending(call_timeout, transaction_pooling=transaction_pooling, where=where)
        self.call_timeout = call_timeout
        self.where = where
        self._loop = asyncio.get_running_loop()
        self._here = Here("PostgresProvider")
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0
        self._generation = 0
        self._lent: dict[Connection, int] = {}
        """Connections that are out of the pool, and the generation in which they were taken from it."""
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
        self._here.require()
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
        """Borrow a connection, made if need be. Give it back, or end it."""
        kept = self.take_kept()
        if kept is not None:
            return kept
        for last in (False, True):
            self._waiting += 1
            try:
                connection = await self.pool.acquire(timeout=self.call_timeout)
            finally:
                self._waiting -= 1
            self._lent[connection] = self._generation
            try:
                await self.sending.look_for_pooler(connection)
            except BaseException as error:
                self.drop(connection)
                if last or not (isinstance(error, Exception) and is_lost(connection, error)):
                    raise
                await self.distrust()
            else:
                return connection
        raise AssertionError("the last turn ends the loop")

    def take_kept(self) -> Connection | None:
        """Borrow the connection that is at hand, if there is one. Give or keep it, or end it."""
        kept, self._kept = self._kept, None
        if kept is not None and is_closed(kept):
            self.drop(kept)
            return None
        return kept

    async def run(self, sql: str, *arguments: object) -> None:
        """Run one statement by itself, on whatever connection, for what it does."""
        connection = await self.take()
        try:
            await self.sending.fetch(connection, sql, *arguments)
        except BaseException:
            self.drop(connection)
            raise
        await self.give(connection)

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
        if self._lent.get(connection) != self._generation:
            return False
        self._kept, self._kept_since = connection, self._loop.time()
        if self._linger is None:
            self._linger = self._loop.call_later(_LINGER, self._stop_keeping)
        return True

    def drop(self, connection: Connection) -> None:
        """End a connection whose state is not known."""
        self._lent.pop(connection, None)
        terminate(connection)

    async def distrust(self) -> None:
        """Let no connection made until now be taken again: one of them was lost."""
        self._generation += 1
        await self.pool.expire_connections()
        if self._kept is not None:
            kept, self._kept = self._kept, None
            await self._release(kept)

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

    async def _release(self, connection: Connection) -> None:
        self._lent.pop(connection, None)
        if self._resets is not None and not is_closed(connection):
            self._resets.spare(connection.get_server_pid())
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
