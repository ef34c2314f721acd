"""One worker process: the app that a service would have, and a record of what it does.

It reads its orders from the first line of its standard input and begins at the second. When the input ends,
because the director says so or because it is gone, the worker stops.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection, LockHandle, LockNotOwnedError, TaskLock
from grelmicro.demo._events import Recorder, What
from grelmicro.demo._plan import Orders
from grelmicro.demo._vendor import provider_for
from grelmicro.errors import GrelmicroError
from grelmicro.task import Tasks

COUNTER = "counter"
_READING_TO_WRITING = 0.03
_LONGEST_PAUSE = 0.1
_JOB = 0.1
_PULSE = 0.2


class Worker:
    """What one of several replicas does."""

    def __init__(self, orders: Orders, record: Recorder) -> None:
        self._orders = orders
        self._record = record
        self._counter = Path(orders.directory) / COUNTER
        plan, prefix = orders.plan, orders.prefix
        self._election = LeaderElection(
            f"{prefix}leader",
            lease_duration=plan.lease,
            renew_deadline=plan.renew_deadline,
            retry_interval=plan.retry,
        )
        tasks = Tasks(tasks=[self._election], shutdown_timeout=1)
        # A lease of its own, so that a worker killed inside the job blocks it for two ticks and not for 60 s.
        job = tasks.interval(
            seconds=plan.tick, name=f"{prefix}report", lock=TaskLock(lease_duration=2 * plan.tick)
        )
        job(self._report)
        provider = provider_for(orders.url)
        self._micro = Grelmicro(uses=[provider, Coordination(provider), tasks])

    async def run(self) -> None:
        """Work until the input ends."""
        async with self._micro, anyio.create_task_group() as group:
            self._record(What.READY)
            if await _input() == b"":
                return
            group.start_soon(self._lead)
            group.start_soon(self._count)
            while await _input():
                pass
            group.cancel_scope.cancel()

    async def _count(self) -> None:
        for number in range(1, self._orders.rounds + 1):
            await self._add_one(hang=number == self._orders.hang_in)
            await anyio.sleep(random.uniform(0, _LONGEST_PAUSE))  # noqa: S311 - no secret
        self._record(What.FINISHED)

    async def _add_one(self, *, hang: bool) -> None:
        """Read, wait and write: without the lock, others would write in between and be overwritten."""
        # A lease lost to a machine that stood still is for the verdict to judge, from what was recorded.
        with suppress(LockNotOwnedError):
            async with self._lock() as handle:
                await self._critical_section(handle, hang=hang)

    async def _critical_section(self, handle: LockHandle | None, *, hang: bool) -> None:
        value = int(self._counter.read_text() or 0)
        asked = fence = None
        if handle is not None:
            asked = time.monotonic() + handle.expires_in() - self._orders.plan.lease
            fence = handle.fencing_token
        self._record(What.TOOK, asked=asked, fence=fence, value=value)
        if hang:
            self._record(What.STUCK, fence=fence)
            await anyio.sleep_forever()
        await anyio.sleep(_READING_TO_WRITING)
        self._counter.write_text(str(value + 1))
        self._record(What.WROTE, fence=fence, value=value + 1)
        self._record(What.LEAVES)

    @asynccontextmanager
    async def _lock(self) -> AsyncGenerator[LockHandle | None]:
        if not self._orders.use_lock:
            yield None
            return
        name = f"{self._orders.prefix}cart"
        lease = self._orders.plan.lease
        async with self._micro.coordination.lock(name, lease_duration=lease, retry_interval=0.02) as handle:
            yield handle

    async def _lead(self) -> None:
        await self._election.lead(self._leaders_work, repeat=True)

    async def _leaders_work(self) -> None:
        what = What.LEADS
        try:
            while True:
                age = self._election.last_confirmation_age()
                self._record(what, asked=None if age is None else time.monotonic() - age)
                what = What.LEADING
                await anyio.sleep(_PULSE)
        finally:
            self._record(What.LED)

    async def _report(self) -> None:
        self._record(What.RUNS)
        try:
            await anyio.sleep(_JOB)
        finally:
            self._record(What.RAN)


async def _input() -> bytes:
    await anyio.wait_readable(sys.stdin.fileno())
    return os.read(sys.stdin.fileno(), 1024)


def main() -> None:
    """Run the worker that the orders describe."""
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as unbuffered:
        orders = Orders.from_line(unbuffered.readline().decode())
    record = Recorder(Path(orders.directory), orders.worker)
    problem: BaseException | None = None
    try:
        anyio.run(Worker(orders, record).run)
    except* GrelmicroError as group:
        problem = group
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    if problem is not None:
        sys.exit(f"{type(problem).__name__}: {problem}")


if __name__ == "__main__":
    main()
