"""Hearing wake-ups, and showing that none came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable

_SOON = 15.0
"""Seconds within which a wake-up comes on a busy machine, and a backend comes to hear them at all."""


class Waking(Protocol):
    """The part of a backend that says whether wake-ups come through."""

    @property
    def wakes(self) -> bool:
        """Whether they do."""
        ...


class Ear:
    """Listens to one name, as one process does, through a backend's `on_turn` or `on_vacancy`."""

    def __init__(self, listen: Callable[[str, Callable[[], object]], Callable[[], None]], name: str) -> None:
        self.count = 0
        self._news = anyio.Event()
        self.stop = listen(name, self._wake)

    def _wake(self) -> None:
        self.count += 1
        self._news.set()

    def forget(self) -> None:
        """Count from here on."""
        self.count = 0
        self._news = anyio.Event()

    async def woken(self) -> None:
        """Wait until it was woken since it last forgot, and forget that."""
        with anyio.fail_after(_SOON):
            await self._news.wait()
        self.forget()


async def can_hear(backend: Waking) -> None:
    """Wait until wake-ups come through, somebody listening already."""
    with anyio.fail_after(_SOON):
        while not backend.wakes:  # noqa: ASYNC110 - nothing tells
            await anyio.sleep(0.01)
