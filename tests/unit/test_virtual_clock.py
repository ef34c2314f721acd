"""Virtual time: hours pass at once, and threads and sockets still get their turn."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import anyio
import pytest

from grelmicro.testing import VirtualClockLoop, virtual_asyncio, virtual_trio

HOUR = 3600.0


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def quickly():
    """Fail a test that waits for real: what it sleeps is far more than its limit."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 60


async def test_sleeping_takes_no_real_time(quickly):
    start = anyio.current_time()
    await anyio.sleep(HOUR)
    assert anyio.current_time() - start == pytest.approx(HOUR)


async def test_an_hour_of_short_sleeps_takes_no_real_time(quickly):
    start = anyio.current_time()
    for _ in range(1800):
        await anyio.sleep(2)
    assert anyio.current_time() - start == pytest.approx(HOUR)


async def test_time_stands_still_while_code_runs():
    before = anyio.current_time()
    for _ in range(100):
        await anyio.lowlevel.checkpoint()
    assert anyio.current_time() == before


async def test_sleepers_wake_in_the_order_of_their_deadlines():
    woken = []

    async def sleep(seconds):
        await anyio.sleep(seconds)
        woken.append((seconds, anyio.current_time() - start))

    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for seconds in (HOUR, 1, 86_400, 0.001, 60):
            tasks.start_soon(sleep, seconds)
    assert [seconds for seconds, _ in woken] == [0.001, 1, 60, HOUR, 86_400]
    assert [at for _, at in woken] == pytest.approx([0.001, 1, 60, HOUR, 86_400])


async def test_very_long_sleeps_end(quickly):
    start = anyio.current_time()
    await anyio.sleep(2**31 - 1)
    await anyio.sleep(0.001)
    assert anyio.current_time() - start == pytest.approx(2**31 - 1, abs=0.1)


async def test_timeouts_come_when_all_wait(quickly):
    with pytest.raises(TimeoutError):
        with anyio.fail_after(HOUR):
            await anyio.Event().wait()


async def test_work_is_done_before_time_jumps():
    with anyio.move_on_after(1) as scope:
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
    assert not scope.cancelled_caught


async def test_a_busy_worker_thread_comes_before_a_timeout():
    release = threading.Event()

    def work():
        release.wait(5)
        return threading.get_ident()

    async def let_go():
        release.set()

    with anyio.fail_after(1):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(let_go)
            assert await anyio.to_thread.run_sync(work) != threading.get_ident()


async def test_a_thread_may_sleep_on_the_loop(quickly):
    def work():
        anyio.from_thread.run(anyio.sleep, HOUR)
        return anyio.from_thread.run_sync(anyio.current_time)

    start = anyio.current_time()
    assert await anyio.to_thread.run_sync(work) - start == pytest.approx(HOUR)


async def test_idle_worker_threads_cost_no_patience():
    await anyio.to_thread.run_sync(threading.get_ident)
    start = time.monotonic()
    for _ in range(5000):
        await anyio.sleep(1)
    # With 20 ms for each jump this would be 100 s.
    assert time.monotonic() - start < 50


async def test_a_socket_is_read_before_time_jumps():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        async with anyio.create_task_group() as tasks:

            async def answer():
                await anyio.to_thread.run_sync(theirs.sendall, b"x")

            tasks.start_soon(answer)
            with anyio.fail_after(1):
                await anyio.wait_readable(ours)
        assert ours.recv(1) == b"x"


def test_the_loop_works_without_anyio():
    async def main():
        loop = asyncio.get_running_loop()
        start = loop.time()
        assert await asyncio.to_thread(threading.get_ident) != threading.get_ident()
        async with asyncio.timeout(HOUR):
            await asyncio.sleep(HOUR - 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await asyncio.Event().wait()
        return loop.time() - start

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(main()) == pytest.approx(HOUR)
