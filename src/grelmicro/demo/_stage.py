"""Following what the workers record: showing it, and waiting for it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from grelmicro.demo._errors import BrokenRunError
from grelmicro.demo._events import What

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.demo._console import Console
    from grelmicro.demo._crew import Crew
    from grelmicro.demo._events import Event, Journal

Found = TypeVar("Found")

_LOOK_EVERY = 0.02
_SHOW_AFTER = 0.06
"""Seconds that an event is kept back, so that earlier ones of other processes come before it."""


class Stage:
    """What has happened so far."""

    def __init__(self, journal: Journal, console: Console, crew: Crew, *, give_up_at: float) -> None:
        self._journal = journal
        self._console = console
        self._crew = crew
        self._give_up_at = give_up_at
        self._unshown: list[Event] = []
        self.events: list[Event] = []

    def until(self, find: Callable[[], Found | None], what: str) -> Found:
        """Wait until `find` finds something in what was recorded, and return it.

        Raises:
            BrokenRunError: a worker ended by itself, or the run takes too long.
        """
        while True:
            self._read()
            self._show(before=time.monotonic() - _SHOW_AFTER)
            found = find()
            if found:
                return found
            self._crew.check()
            if time.monotonic() > self._give_up_at:
                raise BrokenRunError(f"given up while waiting for {what}")
            time.sleep(_LOOK_EVERY)

    def headline(self, text: str) -> None:
        """Show what comes next, after all that has happened."""
        self.catch_up()
        self._console.headline(text)

    def catch_up(self) -> None:
        """Read and show everything."""
        self._read()
        self._show(before=time.monotonic())

    def count(self, what: What) -> int:
        """Say how often something has happened."""
        return sum(event.what is what for event in self.events)

    def first(self, what: What, *, after: float = 0.0) -> Event | None:
        """Return the first event of its kind after a moment."""
        return next((event for event in self.events if event.what is what and event.at > after), None)

    def leader(self) -> Event | None:
        """Return the event with which the present leader began, if there is a leader."""
        leaders: dict[int, Event] = {}
        for event in self.events:
            if event.what is What.LEADS:
                leaders[event.worker] = event
            elif event.what in {What.LED, What.KILLED}:
                leaders.pop(event.worker, None)
        return next(iter(leaders.values()), None)

    def _read(self) -> None:
        new = self._journal.new()
        self.events += new
        self._unshown = sorted([*self._unshown, *new], key=lambda event: event.at)

    def _show(self, *, before: float) -> None:
        while self._unshown and self._unshown[0].at <= before:
            self._console.event(self._unshown.pop(0))
