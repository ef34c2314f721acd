"""Where the locks of one test body live: four backends, each near, and each behind a faulty network."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from grelmicro.coordination import Lock
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.providers.memory import MemoryProvider
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    import pytest

    from grelmicro.coordination.abc import LockBackend
    from grelmicro.providers._base import Provider

LEASE = 30.0
"""Seconds of a lease that does not end during a test."""

SOON = 10.0
"""Seconds that a busy machine may need for what takes a moment; far less than `LEASE`."""


class Network(Protocol):
    """The part of the fault proxy that these tests use."""

    def delay(self, seconds: float, *, to_server: bool = False, to_client: bool = True) -> None: ...

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None: ...

    def refuse(self) -> None: ...

    def cut(self) -> object: ...

    def heal(self) -> None: ...

    @property
    def held_replies(self) -> int: ...


class Place(Protocol):
    """One kind of backend."""

    durable: bool
    """Whether what it knows can be seen from another process."""

    def near(self, **settings: Any) -> AbstractAsyncContextManager[LockBackend]:
        """Open a backend of its own, over a connection of its own, that nothing disturbs."""
        ...

    def far(self, **settings: Any) -> AbstractAsyncContextManager[tuple[LockBackend, Network]]:
        """Open a backend behind a network, and return both."""
        ...


class MemoryPlace:
    """Memory itself, where nothing can go wrong on the way. Its `far` is what a third party may write."""

    durable = False

    def __init__(self) -> None:
        self._provider = MemoryProvider()

    @asynccontextmanager
    async def near(self) -> AsyncIterator[LockBackend]:
        async with MemoryLockAdapter(provider=self._provider) as backend:
            yield backend

    @asynccontextmanager
    async def far(self, *, call_timeout: float = 5.0) -> AsyncIterator[tuple[LockBackend, Network]]:
        network = PretendNetwork()
        async with self.near() as backend:
            yield HomemadeLocks(backend, network, call_timeout), network
            network.heal()


class ServerPlace:
    """A real server, its network a real proxy."""

    durable = True

    def __init__(self, url: str, provider: Callable[..., Provider]) -> None:
        self.url = url
        self.address = address_of(url)
        self._provider = provider

    @asynccontextmanager
    async def near(self, **settings: Any) -> AsyncIterator[LockBackend]:
        async with self._provider(self.url, **settings).lock() as backend:
            yield backend

    @asynccontextmanager
    async def far(self, **settings: Any) -> AsyncIterator[tuple[LockBackend, Network]]:
        with Proxy(self.address) as proxy:
            async with self._provider(proxy.url(self.url), **settings).lock() as backend:
                try:
                    yield backend, proxy
                finally:  # closing waits for what is under way
                    proxy.heal()


class PretendNetwork:
    """What the fault proxy does, done to the calls of `HomemadeLocks`."""

    def __init__(self) -> None:
        self._seconds = {"request": 0.0, "reply": 0.0}
        self._lost = {"request": False, "reply": False}
        self._refused = False
        self._healed = anyio.Event()
        self._cut = anyio.Event()
        self.held_replies = 0

    def delay(self, seconds: float, *, to_server: bool = False, to_client: bool = True) -> None:
        self.heal()
        self._seconds = {"request": seconds * to_server, "reply": seconds * to_client}

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        self.heal()
        self._lost = {"request": to_server, "reply": to_client}

    def refuse(self) -> None:
        self.heal()
        self._refused = True

    def cut(self) -> object:
        cut, self._cut = self._cut, anyio.Event()
        cut.set()
        return None

    def heal(self) -> None:
        self._refused = False
        self._seconds = {"request": 0.0, "reply": 0.0}
        self._lost = {"request": False, "reply": False}
        healed, self._healed = self._healed, anyio.Event()
        healed.set()

    async def carry(self, call: Callable[[], Awaitable[Any]]) -> Any:
        cut = self._cut
        if self._refused:
            raise ConnectionRefusedError
        await self._pass("request", cut)
        answer = await call()
        self.held_replies += 1
        try:
            await self._pass("reply", cut)
        finally:
            self.held_replies -= 1
        return answer

    async def _pass(self, way: str, cut: anyio.Event) -> None:
        await anyio.sleep(self._seconds[way])
        while self._lost[way]:
            async with anyio.create_task_group() as first:
                for event in (cut, self._healed):

                    async def wait(event: anyio.Event = event) -> None:
                        await event.wait()
                        first.cancel_scope.cancel()

                    first.start_soon(wait)
            if cut.is_set():
                raise ConnectionResetError


class HomemadeLocks:
    """A backend with the four methods and nothing else, which forgets its request when it is cancelled."""

    def __init__(self, backend: LockBackend, network: PretendNetwork, call_timeout: float) -> None:
        self._backend = backend
        self._network = network
        self.call_timeout = call_timeout

    async def acquire(self, *, name: str, token: str, duration: float) -> int | None:
        return await self._network.carry(
            lambda: self._backend.acquire(name=name, token=token, duration=duration)
        )

    async def release(self, *, name: str, token: str) -> bool:
        return await self._network.carry(lambda: self._backend.release(name=name, token=token))

    async def locked(self, *, name: str) -> bool:
        return await self._network.carry(lambda: self._backend.locked(name=name))

    async def owned(self, *, name: str, token: str) -> bool:
        return await self._network.carry(lambda: self._backend.owned(name=name, token=token))


def address_of(url: str) -> tuple[str, int]:
    """Return host and port of a URL."""
    host, _, port = url.rpartition("@")[2].rpartition("//")[2].partition("/")[0].rpartition(":")
    return host, int(port)


def make_place(name: str, request: pytest.FixtureRequest) -> Place:
    """Return a place on the shared server."""
    if name == "memory":
        return MemoryPlace()
    return ServerPlace(request.getfixturevalue(f"{name}_url"), partial(new_provider, name))


def new_provider(name: str, url: str, **settings: Any) -> Provider:
    """Return a provider of that vendor."""
    if name == "redis":
        from grelmicro.providers.redis import RedisProvider

        return RedisProvider(url, env_load=False, **settings)
    from grelmicro.providers.postgres import PostgresProvider

    return PostgresProvider(url, env_load=False, **settings)


PLACES = ("memory", "redis", "postgres")
SERVERS = ("redis", "postgres")


def lock_on(backend: LockBackend, name: str, **settings: Any) -> Lock:
    """Return a lock as another process would make it: with an identity of its own."""
    settings = {"lease_duration": LEASE, "retry_interval": 0.02} | settings
    return Lock(name, backend=backend, env_load=False, **settings)


async def take_and_free(backend: LockBackend, name: str) -> None:
    """Show that nobody holds the name any more: another client gets it, long before a lease would end."""
    lock = lock_on(backend, name)
    await lock.acquire(timeout=SOON)
    await lock.release()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that nobody announces."""
    with anyio.fail_after(SOON):
        while not await condition():  # noqa: ASYNC110 - as the name says
            await anyio.sleep(0.002)
