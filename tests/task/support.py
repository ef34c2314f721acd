"""Replicas, and backends that do what a test says."""

from __future__ import annotations

import anyio

from grelmicro.coordination.memory import MemoryLockAdapter, MemoryScheduleAdapter


class Runs:
    """What ran when, over all replicas, and how many functions ran at once."""

    def __init__(self):
        self.origin = anyio.current_time()
        self.starts = []
        self.most_at_once = 0
        self._now = 0

    def body(self, who, duration=0.0):
        async def run():
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self.starts.append((anyio.current_time() - self.origin, who))
            try:
                await anyio.sleep(duration)
            finally:
                self._now -= 1

        return run

    @property
    def times(self):
        return [at for at, _ in self.starts]

    @property
    def gaps(self):
        return [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]


class FaultyLockBackend(MemoryLockAdapter):
    """Memory that fails while it is away, and notes what it was asked."""

    def __init__(self, *, provider=None):
        super().__init__(provider=provider)
        self.away = False
        self.asked = []
        self.before = {}

    async def _call(self, operation, call, **arguments):
        self.asked.append((operation, arguments))
        if operation in self.before:
            await self.before[operation](**arguments)
        if self.away:
            msg = "away"
            raise ConnectionError(msg)
        return await call(**arguments)

    async def acquire(self, *, name, token, duration):
        return await self._call("acquire", super().acquire, name=name, token=token, duration=duration)

    async def release(self, *, name, token):
        return await self._call("release", super().release, name=name, token=token)

    def durations(self):
        return [arguments["duration"] for operation, arguments in self.asked if operation == "acquire"]


class FaultyScheduleBackend(MemoryScheduleAdapter):
    """Memory that fails while it is away, and notes what was claimed."""

    def __init__(self, *, provider=None):
        super().__init__(provider=provider)
        self.away = False
        self.claims = []

    async def claim(self, name, due):
        if self.away:
            msg = "away"
            raise ConnectionError(msg)
        claimed = await super().claim(name, due)
        self.claims.append((name, due, claimed))
        return claimed

    async def last_fired(self, name):
        if self.away:
            msg = "away"
            raise ConnectionError(msg)
        return await super().last_fired(name)


async def open_for(tasks, seconds, *, after=0.0):
    """Run tasks for a while."""
    await anyio.sleep(after)
    async with tasks:
        await anyio.sleep(seconds)
