"""Channels listened to on a connection of their own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.providers._ending import end
from grelmicro.providers._listening import ECHO, Subscription
from grelmicro.providers._redis.calls import pack
from grelmicro.providers._redis.channel import discard

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from grelmicro.providers._redis.dispatch import Dispatcher


class RedisSubscription(Subscription):
    """SUBSCRIBE. The first channel is its own: nobody else listens to it."""

    vendor: ClassVar[str] = "Redis"

    def __init__(
        self,
        dispatcher: Dispatcher,
        channels: Sequence[str],
        on_message: Callable[[str], object],
        on_change: Callable[[], object],
    ) -> None:
        super().__init__(on_message, on_change)
        self._dispatcher = dispatcher
        self._channels = [channel.encode() for channel in channels]

    @asynccontextmanager
    @override
    async def _listening(self) -> AsyncGenerator[asyncio.Future[None]]:
        async with asyncio.timeout(self._dispatcher.call_timeout):
            connection = await self._dispatcher.subscriber()
        reader: asyncio.Task[None] | None = None
        try:
            command = b"*%d\r\n%b" % (1 + len(self._channels), pack(b"SUBSCRIBE", *self._channels))
            async with asyncio.timeout(self._dispatcher.call_timeout):
                await connection.send_packed_command(command, check_health=False)
                for _ in self._channels:
                    await connection.read_response(True, disconnect_on_error=False)  # noqa: FBT003
            reader = asyncio.create_task(self._read(connection), name="grelmicro-redis-messages")
            yield reader
        finally:
            try:
                if reader is not None:
                    await end(reader)
            finally:
                await discard(connection)

    @override
    async def _send_echo(self) -> None:
        await self._dispatcher.command(b"PUBLISH", self._channels[0], ECHO.encode()).future

    async def _read(self, connection: Any) -> None:
        while True:
            match await connection.read_response(True, disconnect_on_error=False):  # noqa: FBT003
                case [b"message", bytes(), bytes() as payload]:
                    self._receive(payload.decode(errors="surrogateescape"))
                case _:
                    continue
