"""Which task or thread of this process holds what: one entry per holder, none that outlives its lease."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, ClassVar
from weakref import ref

import anyio

from grelmicro._threads import calling_thread
from grelmicro.coordination._identity import Identity, fork_count

if TYPE_CHECKING:
    from grelmicro.coordination._calls import LockCalls

_SWEEP_FROM = 64
"""How many identities may hold something before lapsed holds are looked for."""


class Lease:
    """When a lease ends, by this process's monotonic clock, counted from before the request for it."""

    __slots__ = ("_clock", "_over", "_watchers", "deadline")

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self.deadline = deadline
        self._clock = clock
        self._over = False
        self._watchers: list[anyio.Event] | None = None

    def left(self) -> float:
        """Seconds until the end; 0 or less once it is over. Works in any thread."""
        return -math.inf if self._over else self.deadline - self._clock()

    def end(self) -> None:
        """Note that the lock is held no longer, whatever time is left."""
        self._over = True
        for watcher in self._watchers or ():
            watcher.set()

    async def ended(self) -> None:
        """Wait until it is over."""
        while self.left() > 0:
            watcher = anyio.Event()
            self._watchers = [*(self._watchers or ()), watcher]
            try:
                with anyio.CancelScope(deadline=self.deadline):
                    await watcher.wait()
            finally:
                self._watchers.remove(watcher)


@dataclass(frozen=True)
class LockHandle:
    """One acquisition of a lock."""

    name: str
    """The lock's name."""
    token: str = field(repr=False)
    """The ownership token that the backend compares; unique to this acquisition. Treat it as a secret."""
    fencing_token: int
    """Grows strictly with every grant of this name: send it along with each write, and let the written-to
    resource refuse a smaller one than it has seen. Fits a signed 64-bit column and a JavaScript number."""
    _lease: Lease | None = field(default=None, repr=False, compare=False)

    def expires_in(self) -> float:
        """Seconds until the lease ends, by the local monotonic clock; 0 once it has ended.

        Counted from before the last confirmed request, so it never says more than the backend would. Works in
        any thread, and after the process stood still.
        """
        return 0.0 if self._lease is None else max(0.0, self._lease.left())

    async def lost(self) -> None:
        """Wait until the lock is held no longer: its lease ended, it turned out lost, or it was released."""
        if self._lease is not None:
            await self._lease.ended()


class Hold:
    """A held lock, seen from its holder."""

    __slots__ = ("_owner", "calls", "handle", "lease", "perhaps_released")

    def __init__(self, handle: LockHandle, lease: Lease, calls: LockCalls) -> None:
        self.handle = handle
        self.lease = lease
        self.calls = calls
        """The calls to the backend that granted it, whatever an override has put in its place since."""
        self.perhaps_released = False
        """Whether a release was sent whose answer never came."""
        self._owner: object = None

    def belong_to(self, owner: object) -> None:
        """Note whose it is, without keeping a task that ends."""
        self._owner = owner if isinstance(owner, int) else ref(owner)

    def is_of(self, owner: object) -> bool:
        """Say whether it is that task's or thread's."""
        mine = self._owner
        return mine() is owner if isinstance(mine, ref) else mine == owner


class Holders:
    """The holds of one lock identity. Holders are tasks, compared as objects, and threads, by number.

    One that holds something stays alive, whoever made it; a hold whose lease has ended is swept sooner or
    later, since a task or thread that is gone lets go of nothing.
    """

    _holding: ClassVar[set[Holders]] = set()
    _sweep_at: ClassVar[int] = _SWEEP_FROM

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._process = fork_count()
        self._holds: dict[int, Hold] = {}

    def get(self, owner: object) -> Hold | None:
        """Return what `owner` holds, lapsed or not."""
        if self._process != fork_count():  # what the parent holds, it alone may use
            self._process = fork_count()
            self._holds.clear()
        hold = self._holds.get(_key(owner))
        # The id of a task that is gone may be another's by now.
        return hold if hold is not None and hold.is_of(owner) else None

    def add(self, owner: object, hold: Hold) -> None:
        """Note that `owner` holds it, in place of a hold that lapsed."""
        hold.belong_to(owner)
        self._holds[_key(owner)] = hold
        self._holding.add(self)
        if len(self._holding) > Holders._sweep_at:
            for holders in tuple(self._holding):
                holders.sweep()
            Holders._sweep_at = max(_SWEEP_FROM, 2 * len(self._holding))

    def drop(self, owner: object, hold: Hold) -> None:
        """Forget `hold`, unless `owner` holds something else by now."""
        key = _key(owner)
        if self._holds.get(key) is hold:
            del self._holds[key]
            if not self._holds:
                self._holding.discard(self)

    def sweep(self) -> None:
        """Forget what has lapsed."""
        for key, hold in tuple(self._holds.items()):
            if hold.lease.left() <= 0:
                del self._holds[key]
        if not self._holds:
            self._holding.discard(self)


def _key(owner: object) -> int:
    return -owner if isinstance(owner, int) else id(owner)


def current_owner(calls: LockCalls | None = None) -> object:
    """Return who is calling: the thread that waits for this call, else the running task.

    It is quicker with the calls that were made last, whose loop it may well be.
    """
    thread = calling_thread.get()
    if thread is not None:
        return thread
    # A thread runs one loop at a time, so a task that runs in this one's is the one that calls.
    if calls is not None and calls.thread == get_ident():
        task = asyncio.current_task(calls.loop)
        if task is not None:
            return task
    try:
        task = asyncio.current_task()
    except RuntimeError:
        import trio  # noqa: PLC0415 - only there when it runs the caller

        return trio.lowlevel.current_task()
    return task


def current_clock() -> Callable[[], float]:
    """Return the running loop's clock, for use in any thread."""
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        import trio  # noqa: PLC0415 - only there when it runs the caller

        return trio.lowlevel.current_clock().current_time
