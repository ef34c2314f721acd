"""Getting calls to the right server, and a second time where the first try came to nothing.

Every request of this library may be repeated: scripts recognise a token, or a claim, that they have seen.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, ReadOnlyError
from typing_extensions import override

from grelmicro.providers._redis.calls import Call, pack
from grelmicro.providers._redis.channel import Channel, discard
from grelmicro.providers._redis.errors import LostError, explained

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grelmicro.providers._redis.calls import Script
    from grelmicro.providers._redis.channel import Connection

RESP2 = {"protocol": 2}
"""Options for a connection whose messages are plain replies."""

MAX_REDIRECTS = 8
"""How often one call is sent elsewhere, or with its script, before its error counts."""


class Dispatcher(ABC):
    """Sends calls over channels. `where` names the server in messages."""

    spread: ClassVar[bytes] = b"0"
    """`1` when listeners may be on other nodes than the one that publishes."""

    def __init__(self, client: Any, where: str, call_timeout: float) -> None:
        self._client = client
        self._where = where
        self._call_timeout = call_timeout
        self._loop = asyncio.get_running_loop()

    @property
    def call_timeout(self) -> float:
        """Seconds that one call may take."""
        return self._call_timeout

    def run(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes], *, finish: bool = False
    ) -> Call:
        """Send a script; its keys share one hash tag. The reply comes in the call's future.

        Calls about one key reach the server in the order in which they were made.
        """
        call = Call(
            future=self._loop.create_future(),
            deadline=self._loop.time() + self._call_timeout,
            script=script,
            count=3 + len(keys) + len(arguments),
            arguments=pack(b"%d" % len(keys), *keys, *arguments),
            key=keys[0],
            finish=finish,
        )
        self._place(call)
        return call

    def command(self, *parts: bytes) -> Call:
        """Send a command about no key to one of the servers."""
        call = Call(
            future=self._loop.create_future(),
            deadline=self._loop.time() + self._call_timeout,
            script=None,
            count=len(parts),
            arguments=pack(*parts),
        )
        self._place(call)
        return call

    @abstractmethod
    async def subscriber(self) -> Any:
        """Return a new connection to a server whose channels reach all processes, speaking RESP2."""

    @abstractmethod
    async def aclose(self) -> None:
        """Wait until every call has ended, `call_timeout` at most, then close the connections."""

    @abstractmethod
    def _place(self, call: Call, *, again: bool = False) -> None:
        """Hand the call to a channel; `again` before those never sent."""

    @abstractmethod
    def _once_more(self, channel: Channel, call: Call, error: Exception) -> bool:
        """Send the call again if that can help; say whether it was."""

    def _channel(self, make_connection: Any) -> Channel:
        async def connect() -> Connection:
            return await connected(make_connection())

        def failed(call: Call, error: Exception) -> None:
            if isinstance(error, LostError):
                call.uncertain = True
            if isinstance(error, AuthenticationError | ReadOnlyError):
                channel.reset(error)
            if call.wanted and self._loop.time() < call.deadline and self._repeat(channel, call, error):
                return
            call.fail(explained(error, self._where, call.key))

        channel = Channel(connect, failed, self._call_timeout)
        return channel

    def _repeat(self, channel: Channel, call: Call, error: Exception) -> bool:
        call.redirects += 1
        if call.redirects > MAX_REDIRECTS:
            return False
        if isinstance(error, NoScriptError):
            channel.forget_script(call)
            channel.submit(call, again=True)
            return True
        return self._once_more(channel, call, error)


class SingleDispatcher(Dispatcher):
    """Everything goes to one server: the one at the client's address, or the one that Sentinel names."""

    def __init__(self, client: Any, where: str, call_timeout: float) -> None:
        super().__init__(client, where, call_timeout)
        self._only = self._channel(client.connection_pool.make_connection)

    @override
    async def subscriber(self) -> Any:
        pool = self._client.connection_pool
        return await connected(pool.connection_class(**{**pool.connection_kwargs, **RESP2}))

    @override
    async def aclose(self) -> None:
        await drain_and_close(self._only)

    @override
    def _place(self, call: Call, *, again: bool = False) -> None:
        self._only.submit(call, again=again)

    @override
    def _once_more(self, channel: Channel, call: Call, error: Exception) -> bool:
        if not isinstance(error, LostError | ReadOnlyError) or call.retried:
            return False
        call.retried = True
        channel.submit(call, again=True)
        return True


async def connected(connection: Any) -> Connection:
    """Return a connection of redis-py's, connected, for callers who bound their waiting themselves."""
    # Waiting out a back-off is up to the callers.
    connection.retry = Retry(NoBackoff(), 0)
    try:
        await connection.connect()
    except BaseException:
        await discard(connection)
        raise
    # redis-py's own bound would end an idle connection.
    connection.socket_timeout = None
    return connection  # type: ignore[no-any-return]


async def drain_and_close(channel: Channel) -> None:
    """Close a channel once every call on it has ended."""
    try:
        await channel.drain()
    finally:
        await channel.aclose()
