"""Which task or thread of this process holds what: one entry per holder, none that outlives its lease."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from grelmicro._threads import calling_thread
from grelmicro.coordination._identity import Identity, fork_count

if TYPE_CHECKING:
    from grelmicro.coordination._calls import LockCalls

_SWEEP_EVERY = 64


class Lease:
    """When a lease ends, by this process's monotonic clock, counted from before the request for it."""

    __slots__ = ("_clock", "deadline")

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self.deadline = deadline
        self._clock = clock

    def left(self) -> float:
        """Seconds until the end; 0 or less once it is over. Works in any thread."""
        return self.deadline - self._clock()


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


class Hold:
    """A held lock, seen from its holder."""

    __slots__ = ("calls", "handle", "lease")

    def __init__(self, handle: LockHandle, lease: Lease, calls: LockCalls) -> None:
        self.handle = handle
        self.lease = lease
        self.calls = calls
        """The calls to the backend that granted it, whatever an override has put in its place since."""


class Holders:
    """The holds of one lock identity. Holders are tasks, compared as objects, and threads, by number."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._inserts = itertools.count(1)
        self._process = fork_count()
        self._tasks: WeakKeyDictionary[Any, Hold] = WeakKeyDictionary()
        self._threads: dict[int, Hold] = {}

    def get(self, owner: object) -> Hold | None:
        """Return what `owner` holds, lapsed or not."""
        if self._process != fork_count():  # what the parent holds, it alone may use
            self._process = fork_count()
            self._tasks.clear()
            self._threads.clear()
        return self._threads.get(owner) if isinstance(owner, int) else self._tasks.get(owner)

    def add(self, owner: object, hold: Hold) -> None:
        """Note that `owner` holds it, in place of a hold that lapsed."""
        if isinstance(owner, int):
            self._threads[owner] = hold
            if next(self._inserts) % _SWEEP_EVERY == 0:  # a thread that ended never lets go
                self._threads = {n: h for n, h in self._threads.items() if h.lease.left() > 0}
        else:
            self._tasks[owner] = hold

    def drop(self, owner: object, hold: Hold) -> None:
        """Forget `hold`, unless `owner` holds something else by now."""
        if self.get(owner) is hold:
            if isinstance(owner, int):
                del self._threads[owner]
            else:
                del self._tasks[owner]


def current_owner() -> object:
    """Return who is calling: the thread that waits for this call, else the running task."""
    thread = calling_thread.get()
    if thread is not None:
        return thread
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
