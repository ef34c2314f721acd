"""A backend written from the documented methods alone: no base class, no opening, no loop, and slow steps."""

from __future__ import annotations

from datetime import UTC, datetime

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import LeaderRecord
from grelmicro.testing import virtual_asyncio, virtual_trio
from grelmicro.testing.conformance import (
    LeaderElectionBackendSuite,
    LockBackendSuite,
    LockSuite,
    ScheduleBackendSuite,
)

pytestmark = pytest.mark.variant("third-party")


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["virtual-asyncio", "virtual-trio"])
def anyio_backend(request):
    return request.param


class Slow:
    """A store that reads and writes in steps, between which anybody else may run."""

    def __init__(self):
        self._guard = anyio.Lock()
        self._data = {}

    async def _read(self, name):
        await checkpoint()
        return self._data.get(name)

    async def _write(self, name, value):
        await checkpoint()
        self._data[name] = value
        await checkpoint()


class OutsidersLocks(Slow):
    async def acquire(self, *, name, token, duration):
        async with self._guard:
            holder, until, fence = await self._read(name) or (None, 0.0, 0)
            if holder is not None and anyio.current_time() < until:
                if holder != token:
                    return None
            else:
                fence += 1
            await self._write(name, (token, anyio.current_time() + duration, fence))
            return fence

    async def release(self, *, name, token):
        async with self._guard:
            holder, until, fence = await self._read(name) or (None, 0.0, 0)
            if holder != token or anyio.current_time() >= until:
                return False
            await self._write(name, (None, 0.0, fence))
            return True

    async def locked(self, *, name):
        holder, until, _ = await self._read(name) or (None, 0.0, 0)
        return holder is not None and anyio.current_time() < until

    async def owned(self, *, name, token):
        holder, until, _ = await self._read(name) or (None, 0.0, 0)
        return holder == token and anyio.current_time() < until


class OutsidersElections(Slow):
    async def acquire_or_renew(self, *, name, token, duration, metadata=None):
        async with self._guard:
            held = await self._read(name)
            now, wall = anyio.current_time(), datetime.now(UTC)
            live = held is not None and now < held[1]
            if live and held[0].holder != token:
                return held[0]
            if live:
                acquired_at, transitions = held[0].acquired_at, held[0].transitions
            else:
                acquired_at, transitions = wall, held[0].transitions + 1 if held else 0
            record = LeaderRecord(token, duration, acquired_at, wall, transitions, dict(metadata or {}))
            await self._write(name, (record, now + duration))
            return record

    async def release(self, *, name, token):
        async with self._guard:
            held = await self._read(name)
            if held is None or held[0].holder != token or anyio.current_time() >= held[1]:
                return False
            await self._write(name, (held[0], 0.0))
            return True

    async def get(self, *, name):
        held = await self._read(name)
        return held[0] if held is not None and anyio.current_time() < held[1] else None


class OutsidersSchedules(Slow):
    async def claim(self, name, due):
        async with self._guard:
            last = await self._read(name)
            if last is not None and last >= due:
                return False
            await self._write(name, due)
            return True

    async def last_fired(self, name):
        return await self._read(name)


class TestLocks(LockBackendSuite):
    many = 200

    @pytest.fixture
    def backend(self):
        return OutsidersLocks()


class TestLock(LockSuite):
    @pytest.fixture
    def backend(self):
        return OutsidersLocks()


class TestElections(LeaderElectionBackendSuite):
    @pytest.fixture
    def backend(self):
        return OutsidersElections()


class TestSchedules(ScheduleBackendSuite):
    @pytest.fixture
    def backend(self):
        return OutsidersSchedules()
