"""Whose turn it is for a lock in memory: waiting event loops, woken one by one, from any thread."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from grelmicro._threads import call_soon, running_loop
from grelmicro.errors import OutOfContextError

if TYPE_CHECKING:
    from collections.abc import Callable

    Turn = tuple[object, Any]
    """An adapter, and the event loop in which it waits."""


class Turns:
    """Queues by name, used by several threads."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._queues: dict[str, dict[Turn, None]] = {}
        self._listeners: dict[str, dict[Turn, set[Callable[[], object]]]] = {}

    def listen(self, name: str, turn: Turn, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` in the loop of `turn` whenever it is next; returns what ends that."""
        with self._guard:
            self._listeners.setdefault(name, {}).setdefault(turn, set()).add(wake)

        def stop() -> None:
            with self._guard:
                turns = self._listeners.get(name, {})
                wakes = turns.get(turn, set())
                wakes.discard(wake)
                if not wakes:
                    turns.pop(turn, None)
                    self._leave(name, turn)
                if not turns:
                    self._listeners.pop(name, None)

        return stop

    def join(self, name: str, turn: Turn) -> None:
        """Stand in the queue, where one stands already."""
        with self._guard:
            self._queues.setdefault(name, {}).setdefault(turn)

    def leave(self, name: str, turn: Turn) -> None:
        """Leave the queue."""
        with self._guard:
            self._leave(name, turn)

    def wanted_by_others(self, name: str, turn: Turn) -> bool:
        """Say whether anybody else stands in the queue."""
        with self._guard:
            return any(one != turn for one in self._queues.get(name, ()))

    def call_all(self, name: str) -> None:
        """Wake whoever listens, in the queue or not."""
        with self._guard:
            listeners = [(turn, tuple(wakes)) for turn, wakes in self._listeners.get(name, {}).items()]
        for turn, wakes in listeners:
            _woken(turn[1], wakes)

    def call_next(self, name: str, *, but: object = None) -> None:
        """Wake the first in the queue that still is there; the adapter `but`, in this loop, leaves it."""
        if but is not None and name in self._queues:
            self.leave(name, (but, running_loop()))
        while name in self._queues:
            with self._guard:
                turn = next(iter(self._queues.get(name, ())), None)
                if turn is None:
                    return
                self._leave(name, turn)
                wakes = tuple(self._listeners.get(name, {}).get(turn, ()))
            if wakes and _woken(turn[1], wakes):
                return

    def _leave(self, name: str, turn: Turn) -> None:
        queue = self._queues.get(name)
        if queue is not None:
            queue.pop(turn, None)
            if not queue:
                del self._queues[name]


def _woken(loop: Any, wakes: tuple[Callable[[], object], ...]) -> bool:
    def wake() -> None:
        for one in wakes:
            one()

    if loop is running_loop():
        wake()
        return True
    try:
        call_soon(loop, wake)
    except OutOfContextError:  # that loop has ended
        return False
    return True
