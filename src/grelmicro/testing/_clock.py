"""Event loops on which nobody waits: when every task sleeps, time jumps to the next deadline."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from math import inf, nextafter
from typing import TYPE_CHECKING, Any, TypeVar

from typing_extensions import TypeVarTuple, override

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

    from trio.testing import MockClock

T = TypeVar("T")
PosArgs = TypeVarTuple("PosArgs")

__all__ = ["VirtualClockLoop", "virtual_asyncio", "virtual_trio"]

_RESOLUTION = time.get_clock_info("monotonic").resolution

_PATIENCE = 0.02
"""Real seconds that a thread or a socket gets to answer before time jumps past it."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for a timer, says how long that would have taken."""

    def __init__(self, patience: Callable[[], float], jump: Callable[[float], None]) -> None:
        super().__init__()
        self._patience = patience
        self._jump = jump

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(min(timeout, self._patience()))
        if not events:
            self._jump(timeout)
        return events


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop whose `time()` stands still while code runs, and jumps when all of it sleeps.

    Threads and sockets still work: while a worker thread (anyio's or an executor's) is busy or a socket is
    watched, the loop waits 20 ms of real time for it before it jumps. A call that needs longer can therefore
    meet a timeout that real time would not have brought.
    """

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """Wait for the executor's threads as long as that takes: a virtual timeout would be over at once."""
        await super().shutdown_default_executor()

    def __init__(self) -> None:
        self._now = 0.0
        self._executing = 0
        self._jumping = _JumpingSelector(self._patience_now, self._jump)
        super().__init__(self._jumping)
        self._own = len(self._jumping.get_map())

    @override
    def time(self) -> float:
        return self._now

    @override
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*PosArgs], T], *args: *PosArgs
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _: object) -> None:
        self._executing -= 1

    def _jump(self, seconds: float) -> None:
        self._now += seconds
        if self._now + _RESOLUTION <= self._now:
            # So late that the loop's own tolerance is lost in rounding: it runs only what is strictly past.
            self._now = nextafter(self._now, inf)

    def _patience_now(self) -> float:
        # The loop itself watches one end of a pipe, by which threads wake it.
        others = self._executing or len(self._jumping.get_map()) > self._own or self._anyio_threads_busy()
        return _PATIENCE if others else 0

    def _anyio_threads_busy(self) -> bool:
        for thread in threading.enumerate():
            idle: Any = getattr(thread, "idle_workers", None)
            if idle is not None and getattr(thread, "loop", None) is self and thread not in idle:
                return True
        return False


def virtual_asyncio() -> tuple[str, dict[str, Any]]:
    """Return asyncio with virtual time, as anyio's pytest plugin takes it.

    ```python
    @pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
    def anyio_backend(request):
        return request.param
    ```

    Outside of pytest, its two parts are the `backend` and `backend_options` of `anyio.run`.
    """
    return "asyncio", {"loop_factory": VirtualClockLoop}


def virtual_trio() -> tuple[str, dict[str, Any]]:
    """Return trio with virtual time, as anyio's pytest plugin takes it; used like `virtual_asyncio`.

    Trio's own `MockClock`, made to wait 20 ms of real time while a worker thread is busy.
    """
    from trio.testing import MockClock  # noqa: PLC0415 - needed by whoever asks for trio

    clock = MockClock(autojump_threshold=0)
    _be_patient(clock)
    return "trio", {"clock": clock}


def _be_patient(clock: MockClock) -> None:
    """Have the clock look for busy threads whenever trio is about to wait."""
    from trio.testing import active_thread_count  # noqa: PLC0415 - as above

    sleep_time = clock.deadline_to_sleep_time

    def deadline_to_sleep_time(deadline: float) -> float:
        threshold = _PATIENCE if active_thread_count() else 0.0
        if clock.autojump_threshold != threshold:
            clock.autojump_threshold = threshold
        return sleep_time(deadline)

    # MockClock is final, so that this cannot be an override.
    clock.deadline_to_sleep_time = deadline_to_sleep_time  # type: ignore[method-assign]
