"""One lazy timer for any number of things that share a timeout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ItemT = TypeVar("ItemT", bound="Hashable")


class Timeouts(Generic[ItemT]):
    """Calls `expire` once for each item that stays longer than `seconds`."""

    def __init__(self, seconds: float, expire: Callable[[ItemT], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._expire = expire
        self._since: dict[ItemT, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: ItemT) -> None:
        """Start the time of an item."""
        self._since[item] = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._check)

    def discard(self, item: ItemT) -> None:
        """Forget an item, if it is there."""
        self._since.pop(item, None)

    def clear(self) -> list[ItemT]:
        """Forget all items and return them."""
        items = list(self._since)
        self._since.clear()
        return items

    def _check(self) -> None:
        self._timer = None
        now = self._loop.time()
        # Items lie in the order in which they were added, and so in that of their ends.
        while self._since:
            item, since = next(iter(self._since.items()))
            if since + self._seconds > now:
                self._timer = self._loop.call_at(since + self._seconds, self._check)
                return
            del self._since[item]
            self._expire(item)
