"""Calls to a Redis Cluster: one channel for each primary that is used, redirections followed.

The map of slots is redis-py's. What a MOVED reply says about a slot holds until the map is next read, which
happens when a node is lost.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, ClassVar

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ReadOnlyError, RedisError, TryAgainError
from typing_extensions import override

from grelmicro.providers._redis.dispatch import RESP2, Dispatcher, connected, drain_and_close
from grelmicro.providers._redis.errors import LostError, NoReplyError, UnreachableError, explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.providers._redis.calls import Call
    from grelmicro.providers._redis.channel import Channel

_PAUSE = 0.02
"""Seconds to wait for a cluster that is busy with itself; doubles each time."""


class ClusterDispatcher(Dispatcher):
    """Sends each call to the primary that has its key's slot."""

    spread: ClassVar[bytes] = b"1"

    def __init__(self, client: Any, where: str, call_timeout: float) -> None:
        super().__init__(client, where, call_timeout)
        self._channels: dict[tuple[str, int], Channel] = {}
        self._moved: dict[int, tuple[str, int]] = {}
        self._ready = False
        self._reading: asyncio.Task[None] | None = None
        self._waiting: list[Call] = []
        self._held: set[Call] = set()
        self._none_held = asyncio.Event()
        self._retired: set[asyncio.Task[None]] = set()

    @override
    async def subscriber(self) -> Any:
        if not self._ready:
            await self._client.initialize()
        node = random.choice(self._client.get_nodes())  # noqa: S311
        return await connected(self._new_connection((node.host, int(node.port)), **RESP2))

    @override
    async def aclose(self) -> None:
        try:
            while True:
                for channel in list(self._channels.values()):
                    await channel.drain()
                if not self._held:
                    break
                self._none_held.clear()
                await self._none_held.wait()
        finally:
            tasks = [self._loop.create_task(channel.aclose()) for channel in self._channels.values()]
            if self._reading is not None:
                self._reading.cancel()
                tasks.append(self._reading)
            if tasks or self._retired:
                await asyncio.wait([*tasks, *self._retired])

    @override
    def _place(self, call: Call, *, again: bool = False) -> None:
        address = self._address_of(call)
        if address is None:
            self._read_map_for(call)
        else:
            self._channel_to(address).submit(call, again=again)

    @override
    def _once_more(self, channel: Channel, call: Call, error: Exception) -> bool:
        # A redirection without a host means the one that sent it; reading the map finds that out.
        target: Any = error if isinstance(error, AskError) else None
        if target and target.host:
            address = self._client.nodes_manager.remap_host_port(target.host, int(target.port))
            call.asking = not isinstance(error, MovedError)
            if not call.asking:
                self._moved[target.slot_id] = address
            self._channel_to(address).submit(call, again=True)
            return True
        call.asking = False
        if isinstance(error, TryAgainError | ClusterDownError):
            again = self._place if isinstance(error, TryAgainError) else self._read_map_for
            self._later(call, again)
            return True
        if call.retried or not isinstance(error, AskError | LostError | UnreachableError | ReadOnlyError):
            return False
        call.retried = True
        self._read_map_for(call)
        return True

    def _address_of(self, call: Call) -> tuple[str, int] | None:
        if not self._ready:
            return None
        slot = key_slot(call.key)
        if slot in self._moved:
            return self._moved[slot]
        try:
            node = self._client.nodes_manager.get_node_from_slot(slot)
        except (KeyError, RedisError):
            return None
        return node.host, int(node.port)

    def _channel_to(self, address: tuple[str, int]) -> Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._channels[address] = self._channel(lambda: self._new_connection(address))
        return channel

    def _new_connection(self, address: tuple[str, int], **options: Any) -> Any:
        # Not from a node's own pool: a client whose connections are all in use must not stop the locks.
        node = next(iter(self._client.get_nodes()))
        host, port = address
        return node.connection_class(**{**node.connection_kwargs, "host": host, "port": port, **options})

    def _hold(self, call: Call) -> None:
        self._held.add(call)
        self._loop.call_at(call.deadline, self._expire, call)

    def _let_go(self, call: Call) -> bool:
        """Say whether the call was still held; it is not any more."""
        held = call in self._held
        self._held.discard(call)
        if not self._held:
            self._none_held.set()
        return held and call.wanted

    def _expire(self, call: Call) -> None:
        if self._let_go(call):
            call.fail(explained(NoReplyError("the cluster was not reached"), self._where, call.key))

    def _later(self, call: Call, again: Callable[[Call], None]) -> None:
        def go() -> None:
            if self._let_go(call):
                again(call)

        self._hold(call)
        self._loop.call_later(_PAUSE * 2**call.redirects, go)

    def _read_map_for(self, call: Call) -> None:
        self._hold(call)
        self._waiting.append(call)
        if self._reading is None:
            self._reading = self._loop.create_task(self._read_map(), name="grelmicro-redis-cluster")

    async def _read_map(self) -> None:
        failure: UnreachableError | None = None
        try:
            async with asyncio.timeout(self._call_timeout):
                if self._ready:
                    await self._client.nodes_manager.initialize()
                else:
                    await self._client.initialize()
        except Exception as error:  # noqa: BLE001 - whatever it is, the map was not read
            failure = UnreachableError()
            failure.__cause__ = error
        else:
            self._ready = True
            self._moved.clear()
            self._retire()
        finally:
            self._reading = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if not self._let_go(call):
                continue
            if failure is None and self._address_of(call) is not None:
                self._place(call, again=True)
            else:
                reason = failure or UnreachableError("no node serves the slot")
                call.fail(explained(reason, self._where, call.key))

    def _retire(self) -> None:
        """Close the channels to nodes that have left."""
        present = {(node.host, int(node.port)) for node in self._client.get_nodes()}
        for address in self._channels.keys() - present:
            task = self._loop.create_task(drain_and_close(self._channels.pop(address)))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
