"""A task lock for worker threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from grelmicro._threads import call_from_thread

if TYPE_CHECKING:
    from types import TracebackType

    from grelmicro.coordination._holders import LockHandle
    from grelmicro.coordination.tasklock import TaskLock

T = TypeVar("T")


class ThreadTaskLockAdapter:
    """A `TaskLock` for the thread that calls: same methods, same errors, blocking.

    The thread is the holder. Used on the event loop's own thread, everything raises `OutOfContextError` at
    once.
    """

    def __init__(self, lock: TaskLock, loop: Callable[[], Any]) -> None:
        self._lock = lock
        self._loop = loop

    def __enter__(self) -> LockHandle:
        return self._call(self._lock.__aenter__, undo=self._lock.do_thread_exit)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._call(lambda: self._lock.__aexit__(exc_type, exc, tb))

    def refresh(self) -> None:
        """See `TaskLock.refresh`."""
        self._call(self._lock.refresh)

    def locked(self) -> bool:
        """See `TaskLock.locked`."""
        return self._call(self._lock.locked)

    def _call(
        self, work: Callable[[], Awaitable[T]], *, undo: Callable[[], Awaitable[object]] | None = None
    ) -> T:
        return call_from_thread(self._loop(), work, undo=undo)
