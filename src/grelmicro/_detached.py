"""Work in a task of its own, which no cancellation of its starter reaches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Generic, TypeVar

import anyio
from typing_extensions import TypeVarTuple

T = TypeVar("T")
PosArgs = TypeVarTuple("PosArgs")

# asyncio itself holds its tasks weakly.
_running: set[asyncio.Task[None]] = set()


class GivenUpError(Exception):
    """The work was asked to stop before it had a result."""


class Detached(Generic[T]):
    """Work that `spawn` started."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._finished = anyio.Event()
        # Made in the task: anyio knows no current library in a callback of the loop.
        self._scope: anyio.CancelScope | None = None
        self._unwanted = False
        self._value: T
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the work has ended, well or not."""
        return self._finished.is_set()

    def cancel(self) -> None:
        """Ask the work to stop."""
        self._unwanted = True
        if self._scope is not None:
            self._scope.cancel()

    async def wait(self) -> None:
        """Wait until the work has ended; cancelling the wait leaves the work alone."""
        await self._finished.wait()

    def result(self) -> T:
        """Return what the work returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._value

    async def finish(self, then: Callable[[], object] | None = None) -> T:
        """Wait for the end whatever cancels the caller, then deliver the cancellation, else the result.

        When the work went well, `then` is called before that.

        An anyio shield alone does not stop asyncio's native `task.cancel()` and `asyncio.timeout`.
        """
        cancellation: BaseException | None = None
        with anyio.CancelScope(shield=True):
            while not self.done:
                try:
                    await self._finished.wait()
                except anyio.get_cancelled_exc_class() as error:
                    cancellation = error
        if then is not None and self._error is None:
            then()
        if cancellation is not None:
            raise cancellation
        return self.result()

    async def run(self) -> None:
        """Do the work; for `spawn`."""
        try:
            with anyio.CancelScope() as self._scope:
                if self._unwanted:
                    self._scope.cancel()
                self._value = await self._work()
            if self._scope.cancelled_caught:
                self._error = GivenUpError()
        except Exception as error:  # noqa: BLE001 - kept for whoever asks
            self._error = error
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._finished.set()


def spawn(work: Callable[[*PosArgs], Awaitable[T]], *args: *PosArgs, name: str | None = None) -> Detached[T]:
    """Start `work(*args)` in a task of its own and return at once.

    It ends by itself or by `Detached.cancel`, and with the event loop at the latest; its error stays in the
    `Detached` object.
    """
    detached: Detached[T] = Detached(lambda: work(*args))
    name = name or getattr(work, "__qualname__", "detached")
    if on_asyncio():
        task = asyncio.get_running_loop().create_task(detached.run(), name=name)
        _running.add(task)
        task.add_done_callback(_running.discard)
    else:
        import trio  # noqa: PLC0415 - only there when it runs the caller

        trio.lowlevel.spawn_system_task(detached.run, name=name, context=copy_context())
    return detached


def on_asyncio() -> bool:
    """Say whether asyncio runs this code."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
