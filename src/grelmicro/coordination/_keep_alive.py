"""Keeping a lease alive while a block runs, and stopping the block when it is lost.

The block runs in a cancel scope that ends with the lease; each confirmed extension moves that end. At each
await of the extender, a task of its own:

- pause until a third of the lease is over: cancelled when the block ends. Ends at once when the lease does.
- extension failed, or unclear: tried again, until it works or the scope ends by itself.
- extension refused: the scope is cancelled at once.
- block ended meanwhile: what is under way is the last request; none may follow the release. A task that is
  gone without having left its block (an asynchronous generator that was dropped) keeps nothing alive.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import anyio
from anyio import current_time

from grelmicro._detached import Detached, spawn
from grelmicro.coordination.errors import LockAcquireError, LockNotOwnedError

if TYPE_CHECKING:
    from grelmicro.coordination._holders import Lease

logger = logging.getLogger("grelmicro.coordination")

_EXTEND_AFTER = 1 / 3
_RETRY_AFTER = 1 / 20
"""Shares of the lease."""


class KeepAlive:
    """Around one block. `renew(seconds)` sets the lease; `duration()` says for how long, at each time."""

    def __init__(
        self,
        lease: Lease,
        *,
        renew: Callable[[float], Awaitable[None]],
        duration: Callable[[], float],
        longest: float | None,
    ) -> None:
        self._lease = lease
        self._work = anyio.get_current_task().coro
        self._stopped = False
        self._renew = renew
        self._duration = duration
        self._end = math.inf if longest is None else current_time() + longest
        self._scope = anyio.CancelScope(deadline=min(lease.deadline, self._end))
        self._extender: Detached[None]

    def start(self) -> None:
        """Begin; from here on the running task is cancelled when the lease is lost."""
        self._scope.__enter__()
        self._extender = spawn(self._extend, name="grelmicro-keep-alive")

    def stop(self, error: BaseException | None) -> bool:
        """End, `error` coming out of the block, and say whether it ended because the lease was lost."""
        self._stopped = True
        self._extender.cancel()
        if error is None:
            self._scope.__exit__(None, None, None)
        else:
            self._scope.__exit__(type(error), error, error.__traceback__)
        return self._scope.cancelled_caught

    def _end_block(self) -> None:
        if not self._stopped:
            self._scope.cancel()

    async def _extend(self) -> None:
        retry = False
        while True:
            duration = self._duration()
            pause = duration * _RETRY_AFTER if retry else self._lease.left() - duration * (1 - _EXTEND_AFTER)
            with anyio.move_on_after(max(0.0, pause)):
                await self._lease.ended()
                self._end_block()
                return
            if self._stopped or getattr(self._work, "cr_frame", self._work) is None:
                return
            duration, rest = self._duration(), self._end - current_time()
            if rest <= self._lease.left():
                self._scope.deadline = self._end
                return
            try:
                await self._renew(min(duration, rest))
            except LockNotOwnedError:
                self._end_block()
                return
            except LockAcquireError as error:
                if not retry:
                    logger.warning("A lease that is kept alive could not be extended yet: %s", error)
                retry = True
            else:
                retry = False
                self._scope.deadline = min(self._lease.deadline, self._end)


def check_keep_alive(auto_extend: bool, max_hold_duration: float | None, lease_duration: float) -> None:  # noqa: FBT001
    """Raise a ValueError when the settings do not go together."""
    if max_hold_duration is None:
        return
    if not auto_extend:
        msg = "max_hold_duration bounds auto_extend, which is off"
        raise ValueError(msg)
    if max_hold_duration < lease_duration:
        msg = "max_hold_duration must not be shorter than lease_duration"
        raise ValueError(msg)
