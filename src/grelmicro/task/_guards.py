"""What a fire passes before its function runs: leadership, the task lock, a resource lock."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from grelmicro.task._info import Reason
from grelmicro.task._protocols import Leadership
from grelmicro.task.errors import TaskDeclarationError

if TYPE_CHECKING:
    from grelmicro.coordination._interval_lock import IntervalLock
    from grelmicro.task._fire import Fire


@dataclass(frozen=True, slots=True)
class Guard:
    """One thing to hold while the function runs."""

    hold: Callable[[Fire], AbstractAsyncContextManager[Any]]
    """Returns the context for one fire."""
    reason: Reason
    """Why a fire is skipped when somebody else has it."""
    decides: bool
    """Whether it chooses the replica that runs the fire."""


def leader_guard(election: Leadership) -> Guard:
    """Let the leader pass; the election cancels the function when leadership is lost.

    Raises:
        TaskDeclarationError: it is no election.
    """
    given = cast("object", election)
    if not isinstance(given, Leadership):
        msg = f"leader: must be a leader election, not {type(election).__name__}"
        raise TaskDeclarationError(msg)
    return Guard(lambda _: election.guard(), Reason.NOT_LEADER, decides=True)


def task_lock_guard(lock: IntervalLock) -> Guard:
    """Let the holder of the task lock pass."""
    return Guard(lambda fire: _holding(lock, fire), Reason.BUSY, decides=True)


def lock_guard(lock: AbstractAsyncContextManager[Any]) -> Guard:
    """Let the holder of another kind of lock pass.

    Raises:
        TaskDeclarationError: `async with` does not accept it.
    """
    context = _context("lock", lock)
    return Guard(lambda _: context, Reason.BUSY, decides=True)


def resource_guard(sync: AbstractAsyncContextManager[Any]) -> Guard:
    """Hold something else while the function runs.

    Raises:
        TaskDeclarationError: `async with` does not accept it.
    """
    context = _context("sync", sync)
    return Guard(lambda _: context, Reason.BUSY, decides=False)


def _context(parameter: str, value: AbstractAsyncContextManager[Any]) -> AbstractAsyncContextManager[Any]:
    given = cast("object", value)
    if isinstance(given, AbstractAsyncContextManager) and not isinstance(given, type):
        return value
    msg = f"{parameter}: must be an async context manager, such as a lock, not {type(value).__name__}"
    raise TaskDeclarationError(msg)


@asynccontextmanager
async def _holding(lock: IntervalLock, fire: Fire) -> AsyncGenerator[None]:
    async with lock:
        try:
            yield
        finally:
            if not fire.ran:  # what came next refused, so that another replica may still run this tick
                lock.waive()
