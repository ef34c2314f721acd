"""What is measured. Each case returns figures by name; floors alternate with ours, round by round."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from benchmarks._vendors import Cycle, Vendor, rss
from grelmicro.coordination import LeaderElection, Lock

Figures = dict[str, float]

_names = (f"bench-{number}" for number in itertools.count())

WORKERS, HOLDS, HOLD = 20, 5, 0.002
FEW, MANY = 100, 1000
IDEAL = WORKERS * HOLDS * HOLD


async def _rate(cycle: Cycle, callers: int, cycles: int) -> float:
    """Return cycles per second with so many callers, each on a lock of its own."""

    async def caller(number: int) -> None:
        for _ in range(cycles):
            await cycle(number)

    start = time.perf_counter()
    await asyncio.gather(*(caller(number) for number in range(callers)))
    return callers * cycles / (time.perf_counter() - start)


def _ours(locks: list[Lock]) -> Cycle:
    async def cycle(number: int) -> None:
        lock = locks[number]
        await lock.acquire()
        await lock.release()

    return cycle


async def rates(vendor: Vendor, rounds: int) -> Figures:
    """One caller, 100 and 1,000 callers, ours and the floor's."""
    adapter = await vendor.lock_adapter()
    figures: Figures = {}
    per_caller = {"memory": 20000, "redis": 2000, "postgres": 400}[vendor.name]
    by_callers: dict[int, list[float]] = {}
    for callers, floor in ((1, vendor.alone), (FEW, vendor.pooled), (MANY, vendor.pooled)):
        ours = _ours([Lock(next(_names), backend=adapter) for _ in range(callers)])
        cycles = max(5, per_caller // callers) if callers > 1 else per_caller
        await _rate(ours, callers, 5)
        await _rate(floor, callers, 5)
        mine, floors, ratios, peers = [], [], [], []
        for _ in range(rounds):
            floors.append(await _rate(floor, callers, cycles))
            mine.append(await _rate(ours, callers, cycles))
            ratios.append(mine[-1] / floors[-1])
            if vendor.peer is not None and callers < MANY:
                peers.append(await _rate(vendor.peer, callers, cycles))
        by_callers[callers] = mine
        figures[f"{callers} callers: cycles/s"] = statistics.median(mine)
        figures[f"{callers} callers: floor, cycles/s"] = statistics.median(floors)
        figures[f"{callers} callers: rate / floor"] = statistics.median(ratios)
        if peers:
            figures[f"{callers} callers: {vendor.peer_name}, cycles/s"] = statistics.median(peers)
    figures["1000 callers: rate / rate at 100"] = statistics.median(by_callers[MANY]) / statistics.median(
        by_callers[FEW]
    )
    return figures


async def contended(vendor: Vendor, rounds: int) -> Figures:
    """20 workers of this process, 5 holds of 2 ms each, on one lock."""
    adapter = await vendor.lock_adapter()
    lock = Lock(next(_names), backend=adapter)
    spans: list[float] = []

    async def worker() -> None:
        for _ in range(HOLDS):
            async with lock:
                await asyncio.sleep(HOLD)

    async with lock:
        pass
    before = vendor.commands() if vendor.commands else 0
    for _ in range(rounds):
        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(WORKERS)))
        spans.append(time.perf_counter() - start)
    figures = {"contended: makespan / ideal": statistics.median(spans) / IDEAL}
    if vendor.commands:
        sent = vendor.commands() - before
        figures["contended, one process: commands/hold"] = sent / (rounds * WORKERS * HOLDS)
    return figures


class _Worker:
    """A process of `benchmarks._worker`."""

    def __init__(self, vendor: Vendor, name: str, *mode: object) -> None:
        command = [sys.executable, "-m", "benchmarks._worker", vendor.name, vendor.url, name, *map(str, mode)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def tell(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def _heard(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    async def hear(self) -> Any:
        return await anyio.to_thread.run_sync(self._heard, limiter=anyio.CapacityLimiter(WORKERS + 1))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@asynccontextmanager
async def _workers(vendor: Vendor, count: int, name: str, *mode: object) -> AsyncGenerator[list[_Worker]]:
    workers = [_Worker(vendor, name, *mode) for _ in range(count)]
    try:
        await asyncio.gather(*(worker.hear() for worker in workers))
        yield workers
    finally:
        for worker in workers:
            worker.end()


async def contended_processes(vendor: Vendor, _rounds: int) -> Figures:
    """The same in 20 processes."""
    if vendor.commands is None:
        return {}
    async with _workers(vendor, WORKERS, next(_names), "hold", HOLDS, HOLD) as workers:
        before = vendor.commands()
        start = time.monotonic()
        for worker in workers:
            worker.tell()
        ends = await asyncio.gather(*(worker.hear() for worker in workers))
        sent = vendor.commands() - before
    return {
        "contended, 20 processes: makespan / ideal": (max(ends) - start) / IDEAL,
        "contended, 20 processes: commands/hold": sent / (WORKERS * HOLDS),
    }


def _quantiles(name: str, seconds: list[float]) -> Figures:
    seconds.sort()
    return {
        f"{name}: median, ms": 1000 * statistics.median(seconds),
        f"{name}: p99, ms": 1000 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))],
    }


async def hand_over_within(vendor: Vendor, rounds: int) -> Figures:
    """From release to the next holder, in one process."""
    adapter = await vendor.lock_adapter()
    lock = Lock(next(_names), backend=adapter)
    seconds: list[float] = []
    for _ in range(20 * rounds):
        await lock.acquire()
        waiter = asyncio.create_task(_timed_acquire(lock))
        await asyncio.sleep(0.01)
        start = time.perf_counter()
        await lock.release()
        seconds.append(await waiter - start)
    return _quantiles("hand-over within a process", seconds)


async def _timed_acquire(lock: Lock) -> float:
    async with lock:
        return time.perf_counter()


async def hand_over_across(vendor: Vendor, rounds: int) -> Figures:
    """From release to the next holder, one waiter in another process."""
    if vendor.commands is None:
        return {}
    adapter = await vendor.lock_adapter()
    name = next(_names)
    lock = Lock(name, backend=adapter)
    seconds: list[float] = []
    async with _workers(vendor, 1, name, "answer") as (worker,):
        for _ in range(40 * rounds):
            await lock.acquire()
            worker.tell()
            await worker.hear()
            await asyncio.sleep(0.015)  # until it waits
            start = time.monotonic()
            await lock.release()
            seconds.append(await worker.hear() - start)
    return _quantiles("hand-over across processes", seconds[5:])


async def election(vendor: Vendor, rounds: int) -> Figures:
    """From the stop of a leader to the next leader."""
    seconds: list[float] = []
    for _ in range(rounds):
        name = next(_names)
        first = LeaderElection(name, backend=await vendor.election_adapter())
        second = LeaderElection(name, backend=await vendor.election_adapter())
        async with anyio.create_task_group() as group:
            leading = anyio.CancelScope()
            await group.start(_run_in, first, leading)
            await first.wait_for_leader()
            await group.start(second)
            await asyncio.sleep(0.2)  # until it follows and listens
            start = time.perf_counter()
            leading.cancel()
            await second.wait_for_leader()
            seconds.append(time.perf_counter() - start)
            group.cancel_scope.cancel()
    return {"election, graceful hand-over: median, ms": 1000 * statistics.median(seconds)}


async def _run_in(candidate: LeaderElection, scope: anyio.CancelScope, *, task_status: Any) -> None:
    with scope:
        await candidate(task_status=task_status)


async def idle_waiters(vendor: Vendor, _rounds: int) -> Figures:
    """Memory of 10,000 waiters on one lock."""
    adapter = await vendor.lock_adapter()
    lock = Lock(next(_names), backend=adapter)
    async with lock:
        before = rss()
        waiters = [asyncio.create_task(lock.acquire()) for _ in range(10_000)]
        await asyncio.sleep(1)
        used = rss() - before
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
    return {"10,000 idle waiters: KiB each": used / 10_000 / 1024}


def imports(rounds: int) -> Figures:
    """What importing costs, over an interpreter that imports nothing."""
    statements = {
        "nothing": "pass",
        "import pydantic_settings, anyio": "import pydantic_settings, anyio",
        "import grelmicro": "import grelmicro",
        "import Lock": "from grelmicro.coordination import Lock",
    }
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(max(rounds, 7)):
        for name, statement in statements.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            seconds[name].append(time.perf_counter() - start)
    bare = statistics.median(seconds.pop("nothing"))
    cost = {name: statistics.median(times) - bare for name, times in seconds.items()}
    base = cost["import pydantic_settings, anyio"]
    return {f"{name}: ms": 1000 * value for name, value in cost.items()} | {
        "import grelmicro / import pydantic_settings, anyio": cost["import grelmicro"] / base,
        "import Lock / import pydantic_settings, anyio": cost["import Lock"] / base,
    }


Case = Callable[[Vendor, int], Awaitable[Figures]]

CASES: list[Case] = [
    rates,
    contended,
    contended_processes,
    hand_over_within,
    hand_over_across,
    election,
    idle_waiters,
]
