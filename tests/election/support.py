"""A backend that misbehaves on demand, and candidates that run for the length of a block."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio.lowlevel import current_token

from grelmicro.coordination.leaderelection import LeaderElection
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter
from grelmicro.testing import virtual_asyncio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from grelmicro.coordination.abc import LeaderRecord

on_asyncio = pytest.mark.parametrize("anyio_backend", [virtual_asyncio()], ids=["asyncio"])
"""For tests of asyncio's own cancellation."""

TIMES = {"lease_duration": 3, "renew_deadline": 2, "retry_interval": 0.4, "backend_timeout": 1}


class ScriptedBackend:
    """A third party's election backend over memory, whose calls can be replaced.

    `on_renew` and `on_release` get a function that makes the real call, and return (or raise) in its place.
    """

    def __init__(self) -> None:
        self.memory = MemoryLeaderElectionAdapter()
        self.on_renew: Callable[[Callable[[], Awaitable[LeaderRecord]]], Awaitable[Any]] | None = None
        self.on_release: Callable[[Callable[[], Awaitable[bool]]], Awaitable[Any]] | None = None
        self.renewals: list[tuple[float, str]] = []
        self.releases: list[tuple[float, str]] = []
        self.metadata: list[Mapping[str, str] | None] = []

    async def acquire_or_renew(self, *, name, token, duration, metadata=None):
        self.renewals.append((anyio.current_time(), token))
        self.metadata.append(metadata)

        def real():
            return self.memory.acquire_or_renew(name=name, token=token, duration=duration, metadata=metadata)

        return await (real() if self.on_renew is None else self.on_renew(real))

    async def release(self, *, name, token):
        self.releases.append((anyio.current_time(), token))

        def real():
            return self.memory.release(name=name, token=token)

        return await (real() if self.on_release is None else self.on_release(real))

    async def get(self, *, name):
        return await self.memory.get(name=name)


def candidate(backend: Any, name: str = "reports", **settings: Any) -> LeaderElection:
    return LeaderElection(name, backend=backend, env_load=False, **{**TIMES, **settings})


@asynccontextmanager
async def running(*elections: LeaderElection) -> AsyncIterator[anyio.abc.TaskGroup]:
    """Run candidates; leaving the block stops them gracefully and waits for that."""
    async with anyio.create_task_group() as group:
        for election in elections:
            await group.start(election)
        yield group
        group.cancel_scope.cancel()


class Work:
    """A body for `lead` that notes when it ran, and for whom."""

    def __init__(self, *, clean_up: float = 0) -> None:
        self.spans: list[tuple[str, float, float]] = []
        self.running: list[str] = []
        self.overlapped = False
        self._clean_up = clean_up

    async def __call__(self, who: str = "a") -> None:
        self.overlapped = self.overlapped or bool(self.running)
        self.running.append(who)
        start = anyio.current_time()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self._clean_up)
            self.running.remove(who)
            self.spans.append((who, start, anyio.current_time()))


async def settle(turns: int = 20) -> None:
    """Let everything that is ready run, without time passing."""
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()


def stand_still(seconds: float) -> None:
    """Let the (virtual) clock go on while no task runs, as blocking code does."""
    loop = current_token().native_token
    if isinstance(loop, asyncio.AbstractEventLoop):
        loop._now += seconds
        return
    import trio

    trio.lowlevel.current_clock().jump(seconds)


async def until(condition: Callable[[], bool], *, within: float = 60, step: float = 0.01) -> None:
    """Look every `step` seconds of the loop's time until it holds."""
    with anyio.fail_after(within):
        while not condition():  # noqa: ASYNC110 - any condition, at virtual cost
            await anyio.sleep(step)
