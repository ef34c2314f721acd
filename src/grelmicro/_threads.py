"""Calling the event loop from another thread, without ever waiting for oneself."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.lowlevel import checkpoint, current_token

from grelmicro._detached import Detached, on_asyncio, spawn
from grelmicro.errors import OutOfContextError

if TYPE_CHECKING:
    import trio

T = TypeVar("T")

_GRACE = 0.25
"""Seconds past its timeout that a thread waits for the loop's own answer, which says more."""

_numbers = itertools.count(1)
_local = threading.local()

calling_thread: ContextVar[int | None] = ContextVar("grelmicro_calling_thread", default=None)
"""Inside a call made by `call_from_thread`: the `thread_number` of the thread that waits for it."""


def thread_number() -> int:
    """Return this thread's number. Unlike `threading.get_ident`, no later thread ever gets it again."""
    number: int | None = getattr(_local, "number", None)
    if number is None:
        number = _local.number = next(_numbers)
    return number


def running_loop() -> Any:
    """Return what `call_from_thread` needs to come back: the asyncio loop, or trio's token."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return current_token().native_token


def runs_here(loop: Any, thread: int) -> bool:
    """Say whether a loop that runs in that thread has a task which runs this code.

    False may also mean that nobody can tell so quickly: then ask `running_loop`. A thread runs one loop at a
    time, so a task that runs in this one's is the one that asks.
    """
    # For None, asyncio would look up the running loop itself.
    return thread == threading.get_ident() and loop is not None and asyncio.current_task(loop) is not None


async def yield_once() -> None:
    """Let others run, and be cancelled if that is due: anyio's checkpoint, without looking up the library."""
    if "trio" in sys.modules and not on_asyncio():
        await checkpoint()
    else:
        await asyncio.sleep(0)


def call_from_thread(
    loop: Any,
    work: Callable[[], Awaitable[T]],
    *,
    undo: Callable[[], Awaitable[object]] | None = None,
    timeout: float | None = None,
) -> T:
    """Run `work()` on `loop` and wait in this thread for its result.

    Raises `TimeoutError` when nothing came `timeout` seconds (and a short grace) later, even if the loop is
    stalled. Giving up, then or by an interrupt, cancels the work; if it had succeeded in the meantime, `undo`
    runs on the loop, with no pause between the two.

    Raises:
        OutOfContextError: this is the loop's own thread, which would wait for itself, or the loop is not
            running.
    """
    submit = _submitter(loop)
    reply: Future[T] = Future()
    started: list[Detached[None]] = []

    def start() -> None:
        if reply.cancelled():
            return
        try:
            started.append(spawn(_answer, reply, work, undo, name="grelmicro-from-thread"))
        except BaseException as error:
            reply.set_exception(error)  # the thread must not wait for a task that never was
            raise

    def stop() -> None:
        for detached in started:
            detached.cancel()

    context = copy_context()
    context.run(calling_thread.set, thread_number())
    submit(start, context)
    try:
        return reply.result(None if timeout is None else timeout + _GRACE)
    except BaseException as error:
        with suppress(OutOfContextError):  # a loop that has ended runs nothing that could be stopped
            if reply.cancel():
                submit(stop, context)
            elif isinstance(error, TimeoutError):  # answered by now, perhaps with this very error
                return reply.result()
            elif undo is not None and reply.exception() is None:
                submit(lambda: spawn(undo, name="grelmicro-from-thread-undo"), context)
        raise


def call_soon(loop: Any, callback: Callable[[], object]) -> None:
    """Call `callback()` on `loop` soon, from another thread.

    Raises:
        OutOfContextError: the loop does not run.
    """
    _submitter(loop)(callback, copy_context())


async def _answer(
    reply: Future[T], work: Callable[[], Awaitable[T]], undo: Callable[[], Awaitable[object]] | None
) -> None:
    try:
        value = await work()
    except BaseException as error:
        with suppress(InvalidStateError):
            reply.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return
    try:
        reply.set_result(value)
    except InvalidStateError:  # the thread has given up
        if undo is not None:
            await undo()


def _submitter(loop: Any) -> Callable[[Callable[[], object], Any], None]:
    if isinstance(loop, asyncio.AbstractEventLoop):
        return _asyncio_submitter(loop)
    return _trio_submitter(loop)


def _asyncio_submitter(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], object], Any], None]:
    try:
        own = asyncio.get_running_loop() is loop
    except RuntimeError:
        own = False
    if own:
        raise _own_thread()
    if not loop.is_running():
        raise _not_running()

    def submit(callback: Callable[[], object], context: Any) -> None:
        try:
            loop.call_soon_threadsafe(callback, context=context)
        except RuntimeError as error:  # closed in the meantime
            raise _not_running() from error

    return submit


def _trio_submitter(token: trio.lowlevel.TrioToken) -> Callable[[Callable[[], object], Any], None]:
    import trio  # noqa: PLC0415 - only there when it runs the loop

    try:
        own = trio.lowlevel.current_trio_token() is token
    except RuntimeError:
        own = False
    if own:
        raise _own_thread()

    def submit(callback: Callable[[], object], context: Any) -> None:
        try:
            token.run_sync_soon(context.run, callback)
        except trio.RunFinishedError as error:
            raise _not_running() from error

    return submit


def _own_thread() -> OutOfContextError:
    return OutOfContextError(
        "from_thread was used on the event loop's own thread, which would wait for itself; "
        "use the async methods here, or call from a worker thread (anyio.to_thread.run_sync)"
    )


def _not_running() -> OutOfContextError:
    return OutOfContextError(
        "from_thread needs the event loop that the backend was opened on, and that loop is not running"
    )
