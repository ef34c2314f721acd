"""Tasks on real servers, in real time: replicas, outages, processes that come and go."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from contextlib import AsyncExitStack
from itertools import pairwise

import anyio
import pytest

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.task import Tasks
from tests.support.proxy import Proxy
from tests.task.support import Runs
from tests.task.worker import provider_for

pytest.importorskip("redis")
pytest.importorskip("asyncpg")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["redis", "postgres"])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture(params=["redis", "postgres"])
def server(request):
    return request.getfixturevalue(f"{request.param}_server")


@pytest.fixture(params=["redis", "postgres"])
def own_server(request):
    return request.getfixturevalue(f"own_{request.param}")


def replica(url, name, body, seconds, **settings):
    tasks = Tasks()
    tasks.interval(seconds=seconds, name=name, lock=TaskLock())(body)
    return Grelmicro(uses=[Coordination(provider_for(url, **settings)), tasks]), tasks


async def shifted(url, name, *, seconds, phases, total):
    runs, replicas = Runs(), []
    async with anyio.create_task_group() as group:
        for who, phase in enumerate(phases):
            micro, tasks = replica(url, name, runs.body(who, seconds / 20), seconds)
            replicas.append(tasks)

            async def run(micro=micro, phase=phase):
                await anyio.sleep(phase)
                async with micro:
                    await anyio.sleep(total - phase)

            group.start_soon(run)
    return runs, replicas


async def test_three_replicas_with_shifted_phases_run_once_per_interval(url, unique):
    runs, _ = await shifted(url, unique, seconds=0.4, phases=(0, 0.13, 0.27), total=2)
    assert 4 <= len(runs.starts) <= 6
    assert min(runs.gaps) >= 0.4


@pytest.mark.soak
async def test_three_replicas_with_shifted_phases_at_full_size(url, unique):
    runs, _ = await shifted(url, unique, seconds=4, phases=(0, 1.3, 2.7), total=20)
    assert 4 <= len(runs.starts) <= 6
    assert min(runs.gaps) >= 4


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_thousand_ticks(url, unique):
    runs, _ = await shifted(url, unique, seconds=0.5, phases=(0, 0.05, 0.2), total=500)
    assert min(runs.gaps) >= 0.5
    assert len(runs.starts) >= 900


async def test_one_replica_alone_misses_no_tick(url, unique):
    runs, (tasks,) = await shifted(url, unique, seconds=0.25, phases=(0,), total=2.5)
    assert len(runs.starts) >= 5  # the machine may be busy, and each tick waits for the one before
    assert dict(tasks.tasks[0].counts.outcomes) == {"success": len(runs.starts)}
    assert min(runs.gaps) >= 0.25


async def test_ticks_are_not_run_while_the_server_is_away_and_the_first_one_after_it_is_back_runs(
    own_server, unique
):
    runs = Runs()
    micro, tasks = replica(own_server.url, unique, runs.body(0), 0.4)
    counts = tasks.tasks[0].counts
    async with micro:
        await until(lambda: len(runs.starts) >= 2)
        await anyio.to_thread.run_sync(own_server.stop)
        before = len(runs.starts)
        await until(lambda: counts.reasons.get("backend_error", 0) >= 3)
        assert len(runs.starts) <= before + 1  # one may have begun before the server had stopped
        before = len(runs.starts)
        assert "busy" not in counts.reasons
        await anyio.to_thread.run_sync(own_server.start)
        failed = counts.reasons["backend_error"]
        await until(lambda: len(runs.starts) > before)
        assert counts.reasons["backend_error"] - failed <= 1


async def test_a_connection_that_swallows_everything_costs_ticks_but_not_the_loop(server, unique):
    runs = Runs()
    with Proxy(server.address) as proxy:
        micro, tasks = replica(proxy.url(server.url), unique, runs.body(0), 0.2, call_timeout=0.5)
        async with micro:
            await until(lambda: len(runs.starts) >= 2)
            proxy.black_hole()
            await until(lambda: tasks.tasks[0].counts.reasons.get("backend_error", 0) >= 1)
            before = len(runs.starts)
            proxy.heal()
            await until(lambda: len(runs.starts) > before)


async def test_a_lost_reply_of_an_exit_ends_the_hold_all_the_same(server, unique):
    with Proxy(server.address) as proxy:
        provider, direct = provider_for(proxy.url(server.url)), provider_for(server.url)
        async with provider, direct:
            lock = TaskLock(unique, backend=provider.lock(), min_hold_duration=0.3)
            looking = TaskLock(unique, backend=direct.lock())
            for held in (0, 0.4):
                async with lock:
                    await anyio.sleep(held)
                    proxy.lose_reply()
                start = anyio.current_time()
                await until_async(lambda: free(looking))
                assert anyio.current_time() - start < 3


@pytest.mark.parametrize("turns", [0, 2, 20])
async def test_an_exit_cancelled_while_its_reply_is_held_back_ends_the_hold_all_the_same(
    server, unique, turns
):
    with Proxy(server.address) as proxy:
        provider, direct = provider_for(proxy.url(server.url)), provider_for(server.url)
        async with provider, direct:
            lock = TaskLock(unique, backend=provider.lock(), min_hold_duration=0.4)
            leaving = asyncio.Event()

            async def use():
                async with lock:
                    proxy.delay(0.1)
                    leaving.set()
                await anyio.sleep_forever()

            task = asyncio.create_task(use())
            await leaving.wait()
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            looking = TaskLock(unique, backend=direct.lock())
            assert await looking.locked()
            start = anyio.current_time()
            await until_async(lambda: free(looking))
            assert anyio.current_time() - start < 3


async def free(lock):
    return not await lock.locked()


async def test_leaving_the_block_is_bounded_when_nothing_answers(server, unique):
    with Proxy(server.address) as proxy:
        provider = provider_for(proxy.url(server.url))
        async with provider:
            lock = TaskLock(unique, backend=provider.lock(), lease_duration=0.6, min_hold_duration=0.5)
            start = anyio.current_time()
            with pytest.raises(Exception, match="lock") as caught:
                async with lock:
                    proxy.black_hole()
            assert anyio.current_time() - start < provider.call_timeout
            assert caught.type.__name__ in {"LockReleaseError", "LockNotOwnedError"}
            proxy.heal()


async def test_a_blocking_function_loses_its_lock_and_says_so(url, unique, caplog):
    threads, done = [], threading.Event()

    async def job():
        if not done.is_set():
            done.set()
            time.sleep(0.7)  # noqa: ASYNC251 - what is tested
        threads.append(1)

    tasks = Tasks()
    lock = TaskLock(lease_duration=0.3, min_hold_duration=0.3)
    tasks.interval(seconds=0.3, name=unique, lock=lock)(job)
    async with Grelmicro(uses=[Coordination(provider_for(url)), tasks]):
        await until(lambda: len(threads) >= 2)
    assert tasks.tasks[0].counts.reasons["lease_lost"] == 1
    assert f"Task '{unique}' ran for 0.7" in caplog.text


async def test_fifty_claims_of_one_fire_come_true_once(url, unique):
    claimed = []
    async with AsyncExitStack() as stack:
        providers = [await stack.enter_async_context(provider_for(url)) for _ in range(5)]
        async with anyio.create_task_group() as group:

            async def claim(schedule):
                claimed.append(await schedule.claim(unique, 1_800_000_000.0))

            for number in range(50):
                group.start_soon(claim, providers[number % 5].schedule())
    assert sorted(claimed) == [False] * 49 + [True]


class Process:
    """A replica in a process of its own."""

    def __init__(self, url, name, seconds):
        command = [sys.executable, "-m", "tests.task.worker", url, name, str(seconds)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self._ready = threading.Event()
        self.runs = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            if line.strip() == "ready":
                self._ready.set()
            else:
                self.runs.append(float(line))

    def wait_ready(self):
        assert self._ready.wait(30), self._process.stderr.read()

    def stop(self):
        self._process.terminate()
        _, errors = self._process.communicate(timeout=20)
        self._reader.join()
        assert self._process.returncode == 0, errors


_RUNS = 4


def rolling_restart(url, name, seconds, generations):
    processes = [Process(url, name, seconds), Process(url, name, seconds)]
    current = list(processes)
    for process in processes:
        process.wait_ready()
    start = time.time()
    for _ in range(generations):
        fresh = Process(url, name, seconds)
        processes.append(fresh)
        fresh.wait_ready()
        current.pop(0).stop()
        current.append(fresh)
    patience = time.monotonic() + 20
    while sum(len(process.runs) for process in processes) < _RUNS and time.monotonic() < patience:
        time.sleep(seconds / 10)  # on a quick machine the restarts alone take less than a tick
    end = time.time()
    for process in current:
        process.stop()
    runs = sorted(at for process in processes for at in process.runs)
    return runs, [at for at in runs if start <= at <= end], end - start


def test_two_processes_and_a_rolling_restart_run_once_per_tick(url, unique):
    runs, during, duration = rolling_restart(url, unique, 0.5, generations=1)
    assert len(runs) >= _RUNS
    # Each process notes its own wall time, and the machine may halt it in between.
    assert min(later - earlier for earlier, later in pairwise(runs)) >= 0.3
    # A replica that goes may take its phase along, so that the next run is up to one interval late.
    assert len(during) >= duration - 2


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_long_rolling_restart(url, unique):
    runs, during, duration = rolling_restart(url, unique, 1, generations=60)
    assert min(later - earlier for earlier, later in pairwise(runs)) >= 0.8
    assert len(during) >= duration / 2


async def until(condition):
    with anyio.fail_after(30):
        while not condition():  # noqa: ASYNC110 - the server sets no event
            await anyio.sleep(0.005)


async def until_async(condition):
    with anyio.fail_after(30):
        while not await condition():  # noqa: ASYNC110 - as above
            await anyio.sleep(0.005)
