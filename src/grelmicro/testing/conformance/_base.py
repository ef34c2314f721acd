"""What the conformance suites share: an author's knobs, races, and cancellation at a chosen turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar
from uuid import uuid4

import anyio
import pytest
from anyio.lowlevel import checkpoint, current_token

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

LONG = 30.0
"""Seconds of a lease that must not end during a test."""

MAX_FENCE = 2**53
"""What a double, and so JavaScript and Lua, can still count."""

_TURNS = 21


class BackendSuite:
    """Knobs for the author of a backend, who overrides what differs.

    The author's subclass, or its module, has a fixture `backend` that yields an open backend, and may have a
    fixture `anyio_backend` that chooses the event loops to run on.
    """

    pytestmark: ClassVar[Sequence[pytest.MarkDecorator]] = [pytest.mark.anyio]

    min_lease: ClassVar[float] = 0.0
    """Seconds of the shortest lease; a shorter one lasts this long. `lease_of` can say more."""

    short: ClassVar[float] = 0.2
    """Seconds of a lease that is let lapse, and in which one call to the backend must end."""

    grace: ClassVar[float] = 0.05
    """Seconds after the end of a lease by which the backend has noticed."""

    racers: ClassVar[int] = 50
    """How many tasks race for one name."""

    @pytest.fixture
    def unique(self) -> str:
        """Return a prefix for names that no other test uses."""
        return f"c{uuid4().hex[:12]}"

    def lease_of(self, duration: float) -> float:
        """Return the seconds for which the backend grants a lease of `duration` seconds."""
        return max(duration, self.min_lease)

    async def lapse(self, seconds: float) -> None:
        """Let that many seconds pass for the backend, whose clock may be one that can be moved."""
        await anyio.sleep(seconds)

    async def outlive(self, duration: float) -> None:
        """Let a lease of `duration` seconds, granted just now, lapse."""
        await self.lapse(self.lease_of(duration) + self.grace)


async def concurrently(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run the calls at the same time and return what each returned, in their order."""
    results: dict[int, T] = {}

    async def run(index: int, call: Callable[[], Awaitable[T]]) -> None:
        results[index] = await call()

    async with anyio.create_task_group() as tasks:
        for index, call in enumerate(calls):
            tasks.start_soon(run, index, call)
    return [results[index] for index in range(len(calls))]


async def cancelled_by_scope(
    call: Callable[[], Awaitable[object]], turns: int, *, after: anyio.Event | None = None
) -> bool:
    """Cancel the call by an anyio scope, that many turns after its start or `after`; say whether too late."""
    finished = False

    async def run() -> None:
        nonlocal finished
        await call()
        finished = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await _turns(turns, lambda: finished, after)
        tasks.cancel_scope.cancel()
    return finished


async def cancelled_natively(
    call: Callable[[], Awaitable[object]], turns: int, *, after: anyio.Event | None = None
) -> bool:
    """Cancel the call by asyncio's `task.cancel()`, which no anyio shield stops."""

    async def run() -> None:
        await call()

    task = asyncio.get_running_loop().create_task(run())
    await _turns(turns, task.done, after)
    if task.done():
        task.result()
        return True
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
        pytest.fail("a call swallowed its cancellation")
    return False


class Cancel(Protocol):
    """Starts a call, cancels it, and says whether that was too late."""

    def __call__(
        self, call: Callable[[], Awaitable[object]], *, after: anyio.Event | None = None
    ) -> Awaitable[bool]:
        """Count the turns until the cancellation from `after`, if that is given."""
        ...


async def cancelling_at_every_turn(attempt: Callable[[str, Cancel], Awaitable[bool]]) -> None:
    """Make an attempt for each way to cancel and each turn of the loop, until a call ends before its turn.

    `attempt` gets a label, a different one each time, and returns what `Cancel` said.
    """
    on_asyncio = isinstance(current_token().native_token, asyncio.AbstractEventLoop)
    for cancelled in (cancelled_by_scope, cancelled_natively) if on_asyncio else (cancelled_by_scope,):
        for turns in range(_TURNS):
            if await attempt(f"{cancelled.__name__}-{turns}", partial(cancelled, turns=turns)):
                break


async def _turns(count: int, finished: Callable[[], bool], after: anyio.Event | None) -> None:
    if after is not None:
        await after.wait()
    for _ in range(count):
        if finished():
            return
        await checkpoint()
