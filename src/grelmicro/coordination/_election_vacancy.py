"""When a follower asks again before its pause is over: the leader let go, or its lease has ended."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from grelmicro.coordination.abc import WakingElectionBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from grelmicro.coordination.abc import LeaderElectionBackend, LeaderRecord

_ROUNDING = 0.001
"""Seconds by which a lease may outlast what its record says."""


class Vacancy:
    """What one candidate knows of the place of the leader."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self._name = name
        self._clock = clock
        self._word = anyio.Event()
        self._backend: LeaderElectionBackend | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._seen: LeaderRecord | None = None
        self._lease_end = math.inf

    def before_asking(self, backend: LeaderElectionBackend) -> None:
        """Take note of what is said from now on."""
        self._word = anyio.Event()
        if backend is not self._backend:
            self.close()
            if isinstance(backend, WakingElectionBackend):
                self._stop_listening = backend.on_vacancy(self._name, self._hear)
            self._backend = backend

    def saw(self, record: LeaderRecord) -> None:
        """Note when the lease of a record ends at the latest: its length after it was first seen."""
        if record != self._seen:
            self._seen = record
            self._lease_end = self._clock() + record.lease_duration + _ROUNDING

    async def wait(self, pause: float) -> None:
        """Wait until it is worth asking again, `pause` seconds at most."""
        now = self._clock()
        end = now + pause
        if now < self._lease_end:
            end = min(end, self._lease_end)
        with anyio.CancelScope(deadline=end):
            await self._word.wait()

    def _hear(self) -> None:
        self._word.set()

    def close(self) -> None:
        """Stop listening."""
        if self._stop_listening is not None:
            self._stop_listening()
        self._backend = self._stop_listening = None
