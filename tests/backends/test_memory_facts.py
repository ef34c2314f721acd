"""What is particular to the memory backends: loops, processes, bounded state, and no checkpoint too many."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import anyio
import pytest

from grelmicro.coordination import _lease
from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter,
    MemoryLockAdapter,
    MemoryScheduleAdapter,
)
from grelmicro.providers import _memory_store
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing import virtual_asyncio, virtual_trio

pytestmark = pytest.mark.variant("memory")

VIRTUAL = {"virtual-asyncio": virtual_asyncio(), "virtual-trio": virtual_trio()}


@pytest.fixture(params=VIRTUAL.values(), ids=VIRTUAL)
def anyio_backend(request):
    return request.param


async def test_adapters_of_one_provider_share_its_state_and_others_do_not():
    provider = MemoryProvider()
    sharing = MemoryProvider.from_client(provider.client)
    assert await provider.lock().acquire(name="x", token="a", duration=10) is not None
    assert await provider.lock().locked(name="x") is True
    assert await MemoryLockAdapter(provider=sharing).locked(name="x") is True
    assert await MemoryLockAdapter().locked(name="x") is False
    assert await MemoryProvider().lock().locked(name="x") is False


async def test_opening_is_counted_and_changes_nothing():
    provider = MemoryProvider()
    await provider.check()
    lock = provider.lock()
    await lock.acquire(name="x", token="a", duration=10)
    async with provider:
        async with lock:
            assert provider.is_open
            assert await lock.locked(name="x") is True
        assert provider.is_open
    assert not provider.is_open
    assert await lock.locked(name="x") is True


async def test_a_release_in_a_cancelled_scope_takes_effect():
    provider = MemoryProvider()
    lock, election = provider.lock(), provider.leaderelection()
    await lock.acquire(name="x", token="a", duration=10)
    await election.acquire_or_renew(name="x", token="a", duration=10)
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert await lock.release(name="x", token="a") is True
        assert await election.release(name="x", token="a") is True
    assert await lock.locked(name="x") is False
    assert await election.get(name="x") is None


async def test_a_cancelled_request_leaves_nothing():
    provider = MemoryProvider()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.lock().acquire(name="x", token="a", duration=10)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.leaderelection().acquire_or_renew(name="x", token="a", duration=10)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await provider.schedule().claim("x", 1.0)
    assert len(provider.client.locks) == len(provider.client.elections) == len(provider.client.fires) == 0


async def test_released_names_leave_nothing():
    lock = MemoryLockAdapter()
    for number in range(5000):
        await lock.acquire(name=f"order:{number}", token="a", duration=60)
        await lock.release(name=f"order:{number}", token="a")
    assert len(lock.provider.client.locks) == 0


async def test_lapsed_names_go_while_others_come():
    lock = MemoryLockAdapter()
    live = 100
    most = 0
    for number in range(5000):
        await lock.acquire(name=f"order:{number}", token="a", duration=live)
        most = max(most, len(lock.provider.client.locks))
        await anyio.sleep(1)
    assert most <= 3 * live


async def test_ended_elections_go_after_an_hour():
    election = MemoryLeaderElectionAdapter()
    for number in range(500):
        await election.acquire_or_renew(name=f"shard:{number}", token="a", duration=10)
        await election.release(name=f"shard:{number}", token="a")
    assert len(election.provider.client.elections) == 500
    await anyio.sleep(3700)
    for _ in range(500):
        await election.acquire_or_renew(name="shard", token="a", duration=10)
    assert len(election.provider.client.elections) == 1


async def test_transitions_are_counted_over_an_hour_without_a_leader():
    election = MemoryLeaderElectionAdapter()
    await election.acquire_or_renew(name="x", token="a", duration=10)
    await anyio.sleep(3500)
    assert (await election.acquire_or_renew(name="x", token="b", duration=10)).transitions == 1


async def test_fences_grow_while_the_wall_clock_goes_back(monkeypatch):
    lock = MemoryLockAdapter()
    wall = 1_800_000_000.0
    monkeypatch.setattr(_memory_store, "wall_time", lambda: wall)
    fences = []
    for _ in range(10):
        fences.append(await lock.acquire(name="x", token="a", duration=10))
        await lock.release(name="x", token="a")
        wall -= 3600
    assert fences == sorted(set(fences))
    assert fences[0] == 1_800_000_000_000_000


@pytest.mark.parametrize("second", ["asyncio", "trio"])
@pytest.mark.parametrize("first", ["asyncio", "trio"])
def test_state_goes_from_one_loop_to_the_next(first, second):
    lock = MemoryLockAdapter()
    fences = []

    async def take(name, token, duration):
        async with lock:
            fences.append(await lock.acquire(name=name, token=token, duration=duration))

    async def held(name):
        return await lock.locked(name=name)

    anyio.run(take, "long", "a", 30.0, backend=first)
    anyio.run(take, "short", "a", 0.05, backend=second)
    time.sleep(0.06)
    assert anyio.run(held, "long", backend=second) is True
    assert anyio.run(held, "short", backend=first) is False
    anyio.run(take, "long", "b", 30.0, backend=second)
    anyio.run(take, "short", "b", 30.0, backend=second)
    assert fences[2] is None
    assert fences[3] > fences[1]


def test_loops_in_several_threads_exclude_each_other(monkeypatch):
    def take_slowly(*args, **kwargs):
        lease = take(*args, **kwargs)
        time.sleep(0.0001)  # another thread's turn
        return lease

    take = _lease.take
    monkeypatch.setattr(_lease, "take", take_slowly)
    lock = MemoryLockAdapter()
    start = threading.Barrier(4)
    grants = []

    async def race(token):
        for round_ in range(50):
            won = await lock.acquire(name=f"{round_}", token=token, duration=30) is not None
            grants.extend([round_] * won)

    def work(token):
        start.wait()
        anyio.run(race, token)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(grants) == list(range(50))


PROGRAM = """
import logging, multiprocessing, os, sys
import anyio
from grelmicro.coordination.memory import MemoryLockAdapter, MemoryScheduleAdapter

logging.basicConfig(format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
lock = MemoryLockAdapter()
schedule = MemoryScheduleAdapter()

def use():
    for number in range(3):
        anyio.run(lambda: lock.acquire(name="x", token="a", duration=1))
        anyio.run(lambda: schedule.claim("x", number))

if __name__ == "__main__":
    {main}
"""


def run(tmp_path, main):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).replace("{main}", main))
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_one_process_is_not_warned(tmp_path):
    assert run(tmp_path, "use()") == []


def test_a_forked_process_is_warned_once_for_each_provider(tmp_path):
    lines = run(tmp_path, "use() if os.fork() == 0 else os.wait()")
    assert len(lines) == 2
    assert all(line.startswith("WARNING grelmicro.memory A memory backend was made before") for line in lines)


def test_a_spawned_worker_is_warned_once_for_each_provider(tmp_path):
    main = "p = multiprocessing.get_context('spawn').Process(target=use); p.start(); p.join()"
    lines = run(tmp_path, main)
    assert len(lines) == 2
    assert all("exclude nobody in another" in line for line in lines)


async def test_a_schedule_is_remembered_for_ever():
    schedule = MemoryScheduleAdapter()
    assert await schedule.claim("x", 60.0) is True
    await anyio.sleep(86_000)
    assert await schedule.claim("x", 60.0) is False
