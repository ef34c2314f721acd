"""One unbroken period of leading: how long it lasts, and the work that must not outlive it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from grelmicro.coordination._identity import fork_count

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Changes:
    """Tells everybody who waits here that something changed; each waiter then looks for itself."""

    def __init__(self) -> None:
        self._waiting: set[anyio.Event] = set()
        self._process = fork_count()

    def notify(self) -> None:
        """Wake all who wait now."""
        for event in self._here():
            event.set()

    async def wait(self) -> None:
        """Wait for the next change."""
        event = anyio.Event()
        waiting = self._here()
        waiting.add(event)
        try:
            await event.wait()
        finally:
            waiting.discard(event)

    def _here(self) -> set[anyio.Event]:
        if self._process != fork_count():  # the parent's waiters do not live in this process
            self._waiting, self._process = set(), fork_count()
        return self._waiting


class Term:
    """A period of leading. Once over, by its deadline or by `end`, it never comes back."""

    def __init__(
        self,
        clock: Callable[[], float],
        changes: Changes,
        *,
        asked_at: float,
        renew_deadline: float,
        lease_duration: float,
    ) -> None:
        self._clock = clock
        self._changes = changes
        self._process = fork_count()
        self._bodies: set[anyio.CancelScope] = set()
        self.ended = False
        self._confirmed_at = asked_at
        self._deadline = asked_at + renew_deadline
        self._lease_end = asked_at + lease_duration

    @property
    def here(self) -> bool:
        """Whether it is this process's term, and not that of the one it was forked from."""
        return self._process == fork_count()

    @property
    def alive(self) -> bool:
        """Whether this process leads, by the clock and not by a timer that a stalled loop would run late."""
        return not self.ended and self._clock() < self._deadline and self.here

    @property
    def busy(self) -> bool:
        """Whether work of this term still runs."""
        return bool(self._bodies)

    @property
    def deadline(self) -> float:
        """When leading ends unless it is confirmed again (loop time)."""
        return self._deadline

    @property
    def lease_end(self) -> float:
        """The first moment at which somebody else may lead (loop time)."""
        return self._lease_end

    @property
    def age(self) -> float:
        """Seconds since the last confirmed request was made."""
        return self._clock() - self._confirmed_at

    def confirm(self, *, asked_at: float, renew_deadline: float, lease_duration: float) -> bool:
        """Push the end forward, unless the term is over."""
        if not self.alive:
            return False
        self._confirmed_at = asked_at
        self._lease_end = asked_at + lease_duration
        self._move_deadline(asked_at + renew_deadline)
        return True

    def limit(self, *, asked_at: float, renew_deadline: float, lease_duration: float) -> None:
        """Pull the end in if a request made now may shorten the lease, as after a reconfiguration."""
        self._lease_end = min(self._lease_end, asked_at + lease_duration)
        if asked_at + renew_deadline < self._deadline:
            self._move_deadline(asked_at + renew_deadline)

    def end(self) -> None:
        """End it now: leading first, then the work is told to stop."""
        self.ended = True
        for scope in self._bodies:
            scope.cancel()
        self._changes.notify()

    @contextmanager
    def body(self) -> Generator[anyio.CancelScope]:
        """Run the block as work of this term: cancelled when that is over, and waited for by `drained`."""
        with anyio.CancelScope(deadline=self._deadline) as scope:
            self._bodies.add(scope)
            try:
                yield scope
            finally:
                self._bodies.discard(scope)
                self._changes.notify()

    async def over(self) -> None:
        """Wait until the term is over."""
        while self.alive:
            with anyio.CancelScope(deadline=self._deadline):
                await self._changes.wait()

    async def drained(self) -> None:
        """Wait until no work of this term runs."""
        while self._bodies:
            await self._changes.wait()

    def _move_deadline(self, deadline: float) -> None:
        self._deadline = deadline
        for scope in self._bodies:
            scope.deadline = deadline
