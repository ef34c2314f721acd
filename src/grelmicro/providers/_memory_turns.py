"""Whose turn it is for a lock in memory: waiting event loops, woken one by one, from any thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grelmicro._threads import call_soon, running_loop
from grelmicro.errors import OutOfContextError

if TYPE_CHECKING:
    from collections.abc import Callable

    Turn = tuple[object, Any]
    """An adapter, and the event loop in which it waits."""


class Turns:
    """Queues by name. Each step is one operation on a dictionary, so threads need no lock."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[Turn, None]] = {}
        self._listeners: dict[tuple[str, Turn], Callable[[], object]] = {}

    def listen(self, name: str, turn: Turn, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` in the loop of `turn` whenever it is next; returns what ends that."""
        self._listeners[name, turn] = wake

        def stop() -> None:
            self._listeners.pop((name, turn), None)
            self.leave(name, turn)

        return stop

    def join(self, name: str, turn: Turn) -> None:
        """Stand in the queue, where one stands already."""
        self._queues.setdefault(name, {}).setdefault(turn)

    def leave(self, name: str, turn: Turn) -> None:
        """Leave the queue."""
        queue = self._queues.get(name)
        if queue is not None:
            queue.pop(turn, None)
            if not queue:
                self._queues.pop(name, None)

    def wanted_by_others(self, name: str, turn: Turn) -> bool:
        """Say whether anybody else stands in the queue."""
        return any(one != turn for one in tuple(self._queues.get(name, ())))

    def call_all(self, name: str) -> None:
        """Wake whoever listens, in the queue or not."""
        for (listened_to, turn), wake in tuple(self._listeners.items()):
            if listened_to == name:
                _woken(turn[1], wake)

    def call_next(self, name: str) -> None:
        """Wake the first in the queue that still is there."""
        for turn in tuple(self._queues.get(name, ())):
            self.leave(name, turn)
            wake = self._listeners.get((name, turn))
            if wake is not None and _woken(turn[1], wake):
                return


def _woken(loop: Any, wake: Callable[[], object]) -> bool:
    if loop is running_loop():
        wake()
        return True
    try:
        call_soon(loop, wake)
    except OutOfContextError:  # that loop has ended
        return False
    return True
