"""Running a coroutine from the callbacks of what it awaits, for work too short for a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Driven(ABC):
    """Starts a coroutine at once and goes on with it whenever the future that it awaits is done.

    A task would cost two more turns of the event loop. In return, the coroutine may await futures only, is
    not cancelled, and has no current task: `asyncio.timeout` and its like do not work in it.
    """

    __slots__ = ("_coroutine",)

    def drive(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Start it."""
        self._coroutine = coroutine
        self._step()

    @abstractmethod
    def returned(self, result: Any) -> None:
        """Take what the coroutine returned."""

    @abstractmethod
    def raised(self, error: BaseException) -> None:
        """Take what the coroutine raised."""

    def _step(self, _: object = None) -> None:
        try:
            future = self._coroutine.send(None)
        except StopIteration as stop:
            self.returned(stop.value)
        except BaseException as error:  # noqa: BLE001 - passed on, whatever it is
            self.raised(error)
        else:
            future._asyncio_future_blocking = False  # noqa: SLF001 - a task does this to say that it waits
            future.add_done_callback(self._step)
