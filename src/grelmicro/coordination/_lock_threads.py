"""A lock for worker threads: each method runs its twin on the event loop and waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import from_thread

from grelmicro._threads import call_from_thread, running_loop, thread_number
from grelmicro.coordination._waiting import check_timeout
from grelmicro.coordination.errors import LockTimeoutError
from grelmicro.errors import OutOfContextError
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT

if TYPE_CHECKING:
    from types import TracebackType

    from grelmicro.coordination._calls import LockCalls
    from grelmicro.coordination._holders import LockHandle
    from grelmicro.coordination.lock import Lock

T = TypeVar("T")


def loop_of(backend: object, calls: LockCalls | None) -> Any:
    """Return the loop that a backend lives on.

    Raises:
        OutOfContextError: nothing tells.
    """
    loop = getattr(backend, "_loop", None)
    if loop is not None:
        return loop
    if calls is not None and calls.backend is backend:
        return calls.loop
    try:
        return from_thread.run_sync(running_loop)
    except RuntimeError as error:
        msg = (
            "from_thread does not know the event loop of this backend: open the backend on the loop first "
            "('async with backend:' or 'async with micro:'), or call from a thread that anyio started"
        )
        raise OutOfContextError(msg) from error


class ThreadLockAdapter:
    """A `Lock` for the thread that calls: same methods, same errors, blocking.

    The thread is the holder. Used on the event loop's own thread, every method raises `OutOfContextError` at
    once. A thread that waits occupies a worker of its pool, so keep the pool larger than the number of
    waiters whose holder needs a thread too, or pass a timeout.
    """

    def __init__(self, lock: Lock, loop: Callable[[], Any]) -> None:
        self._lock = lock
        self._loop = loop

    def acquire(self, *, timeout: float | None = None) -> LockHandle:
        """See `Lock.acquire`. The timeout holds even while the event loop is stalled."""
        lock, thread = self._lock, thread_number()
        limit = check_timeout(timeout)
        patience = limit
        if limit == 0:  # one try, which the backend bounds
            patience = getattr(lock.backend, "call_timeout", DEFAULT_CALL_TIMEOUT)
        try:
            return self._call(
                lambda: lock.do_thread_acquire(thread, timeout=limit),
                undo=lambda: lock.do_thread_give_up(thread),
                timeout=patience,
            )
        except LockTimeoutError:
            raise
        except TimeoutError as error:
            msg = f"lock {lock.name!r}: the event loop gave no answer within {patience:g} s"
            raise LockTimeoutError(msg) from error

    def acquire_nowait(self) -> LockHandle:
        """See `Lock.acquire_nowait`."""
        lock, thread = self._lock, thread_number()
        return self._call(
            lambda: lock.do_thread_acquire_nowait(thread),
            undo=lambda: lock.do_thread_give_up(thread),
        )

    def extend(self) -> LockHandle:
        """See `Lock.extend`."""
        thread = thread_number()
        return self._call(lambda: self._lock.do_thread_extend(thread))

    def release(self) -> None:
        """See `Lock.release`."""
        thread = thread_number()
        self._call(lambda: self._lock.do_thread_release(thread))

    def locked(self) -> bool:
        """See `Lock.locked`."""
        return self._call(self._lock.locked)

    def owned(self) -> bool:
        """See `Lock.owned`; the holder asked about is this thread."""
        return self._call(self._lock.owned)

    def __enter__(self) -> LockHandle:
        return self.acquire()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._call(lambda: self._lock.__aexit__(exc_type, exc, tb))

    def _call(
        self,
        work: Callable[[], Awaitable[T]],
        *,
        undo: Callable[[], Awaitable[object]] | None = None,
        timeout: float | None = None,
    ) -> T:
        return call_from_thread(self._loop(), work, undo=undo, timeout=timeout)
