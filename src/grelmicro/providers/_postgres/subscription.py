"""Channels listened to on a connection of their own."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import asyncpg
from typing_extensions import override

from grelmicro.providers._listening import ECHO, Subscription
from grelmicro.providers._postgres.sending import terminate

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from grelmicro.providers._postgres.connections import Connections, Pool

    Ear = asyncpg.Connection[asyncpg.Record] | asyncpg.pool.PoolConnectionProxy[asyncpg.Record]

logger = logging.getLogger("grelmicro.providers.postgres")

_CLOSING = 1.0
"""Seconds for taking leave of the server."""
_ENOUGH = 2
"""How many connections a pool must have at hand to spare one."""


@asynccontextmanager
async def own_ear(arguments: Mapping[str, Any], call_timeout: float) -> AsyncGenerator[Ear]:
    """Make a connection to listen on."""
    connection = await asyncpg.connect(**arguments, timeout=call_timeout, statement_cache_size=0)
    try:
        yield connection
    finally:
        try:
            await connection.close(timeout=_CLOSING)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            logger.debug("A connection could not be closed and was ended", exc_info=True)


@asynccontextmanager
async def borrowed_ear(pool: Pool, call_timeout: float) -> AsyncGenerator[Ear]:
    """Take a connection to listen on from a pool, whose others have to be enough for all else.

    Raises:
        ConnectionError: no other would be left.
    """
    if pool.get_max_size() - (pool.get_size() - pool.get_idle_size()) < _ENOUGH:
        raise ConnectionError("the pool has no connection to spare")
    connection = await pool.acquire(timeout=call_timeout)
    try:
        yield connection
    finally:
        terminate(connection)  # nobody else should listen


class PostgresSubscription(Subscription):
    """LISTEN, which a pooler that parts transactions takes without a word, to deliver nothing."""

    vendor: ClassVar[str] = "PostgreSQL"

    def __init__(
        self,
        connections: Connections,
        ear: Callable[[], AbstractAsyncContextManager[Ear]],
        channels: Sequence[str],
        on_message: Callable[[str], object],
        on_change: Callable[[], object],
    ) -> None:
        super().__init__(on_message, on_change)
        self._connections = connections
        self._ear = ear
        self._channels = channels

    @asynccontextmanager
    @override
    async def _listening(self) -> AsyncGenerator[asyncio.Future[None]]:
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hear(_connection: object, _pid: int, _channel: str, payload: object) -> None:
            self._receive(str(payload))

        def end(_connection: object) -> None:
            if not ended.done():
                ended.set_result(None)

        async with self._ear() as connection:
            connection.add_termination_listener(end)
            async with asyncio.timeout(self._connections.call_timeout):
                for channel in self._channels:
                    await connection.add_listener(channel, hear)
            yield ended

    @override
    async def _send_echo(self) -> None:
        self._connections.require_here()
        await self._connections.run("SELECT pg_notify($1, $2)", self._channels[0], ECHO)
