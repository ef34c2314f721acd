"""A held task lock, and its end: released, or kept until its minimum hold is over.

The end runs in a task of its own, which no cancellation reaches, and whoever leaves the block waits for it,
at most `call_timeout`. What is open at each await:

- keeping: the remaining time of the token is set to what is left of the minimum hold. A grant with another
  fencing token means that the lease had lapsed: it is given back, and the lock counts as lost.
- releasing: nothing is left of the minimum hold.
- failed, or no answer in time: the lease still counts. The end is tried again in the background, and before
  this lock is next taken, until it has worked or the lease is over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio import current_time

from grelmicro._detached import spawn
from grelmicro.coordination._calls import LockCalls, translated
from grelmicro.coordination._holders import Hold, Lease, LockHandle
from grelmicro.coordination.errors import LockReleaseError
from grelmicro.errors import OutOfContextError

if TYPE_CHECKING:
    from grelmicro.coordination.tasklock import TaskLock

_ROUNDING = 0.002
"""Seconds by which a backend that counts in milliseconds may end a lease later than asked."""
_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between tries of an end that failed; the pause doubles up to the longest."""


class Terms(NamedTuple):
    """What a task lock is taken with."""

    name: str
    key: str
    """The name that the backend knows."""
    min_hold_duration: float
    lease_duration: float


class TaskLockCalls(LockCalls):
    """Adds the call that ends a hold without freeing the lock."""

    async def keep(self, key: str, token: str, duration: float, *, within: float) -> int | None:
        """Let `token` end `duration` seconds from now; returns its fencing token, or None if it is lost.

        Raises:
            LockReleaseError: the backend failed or gave no answer in time, so the lease is as it was, or
                kept.
        """
        with translated(LockReleaseError, "keep the lock for its minimum hold"):
            with anyio.fail_after(min(self.call_timeout, within)):
                granted = await self._calls.acquire(name=key, token=token, duration=duration)
            if granted is not None and type(granted) is not int:
                msg = f"a fencing token must be an integer, not {type(granted).__name__}"
                raise TypeError(msg)
            return granted


class TaskHold(Hold):
    """A held task lock, seen from its holder."""

    __slots__ = ("_granted_at", "_min_hold", "current_terms", "ended", "kept_until", "left", "terms")

    calls: TaskLockCalls

    def __init__(
        self, handle: LockHandle, lease: Lease, calls: TaskLockCalls, current_terms: Callable[[], Terms]
    ) -> None:
        super().__init__(handle, lease, calls)
        self.current_terms = current_terms
        self.terms = terms = current_terms()
        """What it was taken with, and ends with."""
        self.left = False
        """The block is over."""
        self.ended = False
        """The backend knows that it is."""
        self._granted_at = current_time()
        self._min_hold = terms.min_hold_duration
        self.kept_until = self._granted_at
        """When the lock is certainly free again, once the hold has ended (loop time)."""

    def waive(self) -> None:
        """Forget the minimum hold: what the lock was taken for did not happen."""
        self._min_hold = 0

    async def end(self) -> bool:
        """Keep or release the lock, as time demands, and say whether it was still held."""
        ending = spawn(self._end, name="grelmicro-tasklock-end")
        held = await ending.finish()
        self.ended = True
        self.lease.end()
        return held

    def end_later(self) -> None:
        """Try again in the background what has failed."""
        spawn(self._end_later, name="grelmicro-tasklock-end")

    async def _end(self) -> bool:
        key, token, within = self.terms.key, self.handle.token, max(self.lease.left(), 0)
        # Counted from the reply, so that the lock is held for no less than the minimum since the grant.
        rest = self._granted_at + self._min_hold - current_time()
        if rest <= 0:
            return await self.calls.release(key, token, within=within)
        granted = await self.calls.keep(key, token, rest, within=within)
        if granted == self.handle.fencing_token:
            self.kept_until = current_time() + rest + _ROUNDING
            return True
        if granted is not None:
            await self.calls.release(key, token, within=rest)
        return False

    async def _end_later(self) -> None:
        pause = _PAUSE
        while not self.ended and self.lease.left() > 0:
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            try:
                await self.end()
            except LockReleaseError as error:
                if isinstance(error.__cause__, OutOfContextError):  # closed for good
                    return


class HeldAround(NamedTuple):
    """A hold that the function of a task runs under, wherever that runs."""

    lock: TaskLock
    owner: object
    hold: TaskHold


held_around: ContextVar[HeldAround | None] = ContextVar("grelmicro_task_lock", default=None)
"""Lets a task's function refresh the lock from its worker thread, or from a task that it started."""
