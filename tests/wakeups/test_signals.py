"""Whoever waits in another process or loop is woken at once, and polls where no word comes."""

from __future__ import annotations

import threading

import anyio
import pytest
from anyio import current_time
from anyio.lowlevel import checkpoint

from grelmicro.coordination import LeaderElection, Lock
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter, MemoryLockAdapter
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing import virtual_asyncio, virtual_trio
from tests.lock.places import HomemadeLocks, PretendNetwork, new_provider
from tests.wakeups.support import (
    NEVER,
    SOON,
    Served,
    Watched,
    can_hear,
    patient_lock,
    until,
    until_waiting,
)

REDIS_KINDS = ("sentinel", "cluster", "tls")


async def test_a_release_is_heard_at_once(near, other, unique, only_signals):
    """Wherever everybody would wait for minutes, if it were not."""
    await _pass_around([near, other], unique)


@pytest.mark.parametrize("where", REDIS_KINDS)
async def test_a_release_is_heard_at_once_however_redis_is_run(where, request, unique, only_signals):
    server = request.getfixturevalue(f"redis_{where}" if where == "tls" else where)
    async with (
        new_provider("redis", server.url).lock() as one,
        new_provider("redis", server.url).lock() as two,
    ):
        await _pass_around([one, two], unique)


async def _pass_around(backends, name, rounds=5):
    served = Served()
    async with anyio.create_task_group() as tasks:
        for number in range(rounds):
            holding, waiting = backends[number % 2], backends[(number + 1) % 2]
            holder = patient_lock(holding, name)
            await holder.acquire(timeout=SOON)
            async with anyio.create_task_group() as waiters:
                waiters.start_soon(served.once, patient_lock(waiting, name), number, SOON)
                await until_waiting(waiting, name, 1)
                await can_hear(waiting)
                await checkpoint()
                await holder.release()
        tasks.cancel_scope.cancel()
    assert served.order == list(range(rounds))


async def test_processes_take_turns(place, unique, only_signals):
    """A saturated process hands over within itself only a few times while another one waits."""
    served = Served()
    async with place.near() as one, place.near() as two, anyio.create_task_group() as tasks:

        async def work(who, backend):
            lock = patient_lock(backend, unique)
            while len(served.order) < 200:
                await served.once(lock, who, SOON)

        for who, backend in ((1, one), (2, two)):
            for _ in range(10):
                tasks.start_soon(work, who, backend)
    first = max(served.order.index(1), served.order.index(2))
    contended = served.order[first:200]
    shares = [contended.count(who) / len(contended) for who in (1, 2)]
    assert min(shares) >= 0.25, shares


async def test_a_turn_that_nobody_uses_goes_to_the_next_process(place, unique, only_signals):
    """The only waiter of the first process gives up in the moment in which it is woken."""
    served = Served()
    async with place.near() as one, place.near() as two, place.near() as three:
        for number in range(20):
            name = f"{unique}-{number}"
            holder = patient_lock(one, name)
            await holder.acquire()
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()

                async def give_up(name=name, scope=scope):
                    with scope:
                        async with patient_lock(two, name):
                            await checkpoint()

                tasks.start_soon(give_up)
                await until_waiting(two, name, 1)
                await can_hear(two)
                await _queued(two, name)
                tasks.start_soon(served.once, patient_lock(three, name), number, SOON)
                await until_waiting(three, name, 1)
                await can_hear(three)
                await _queued(three, name)
                if number % 2:
                    scope.cancel()
                    await holder.release()
                else:
                    await holder.release()
                    for _ in range(number // 4):
                        await checkpoint()
                    scope.cancel()
    assert served.order == list(range(20))


async def _queued(backend, name):
    """Let its contender's request, which may be under way, arrive."""
    for _ in range(5):
        await backend.locked(name=name)
        await checkpoint()


async def test_a_cancelled_waiter_of_another_process_blocks_nobody(near, other, unique, only_signals):
    holder, lock = patient_lock(near, unique), patient_lock(other, unique)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lock.acquire)
        await until_waiting(other, unique, 1)
        await can_hear(other)
        tasks.cancel_scope.cancel()
    await holder.release()
    await holder.acquire(timeout=SOON)
    await holder.release()


@pytest.mark.parametrize("loops", ["asyncio", "trio"])
@pytest.mark.parametrize("where", ["memory"])
async def test_loops_in_several_threads_share_one_memory_adapter(where, loops, unique, only_signals):
    backend = MemoryLockAdapter(provider=MemoryProvider())
    served = Served()
    rounds = 200

    async def work(who):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(repeat, who)

    async def repeat(who):
        lock = patient_lock(backend, unique)
        for _ in range(rounds // 6):
            await served.once(lock, who, SOON)

    threads = [
        threading.Thread(target=lambda who=who: anyio.run(work, who, backend=loops)) for who in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        await anyio.to_thread.run_sync(thread.join)
    assert len(served.order) == 2 * 3 * (rounds // 6)


# Without word


@pytest.mark.parametrize(
    "anyio_backend", [virtual_asyncio(), virtual_trio()], ids=["virtual-asyncio", "virtual-trio"]
)
@pytest.mark.parametrize("where", ["memory"])
async def test_a_backend_of_four_methods_is_polled_by_one_contender(where, unique):
    third_party = HomemadeLocks(MemoryLockAdapter(), PretendNetwork(), 5.0)
    asked = []
    acquire = third_party.acquire

    async def counted(**arguments):
        asked.append(current_time())
        return await acquire(**arguments)

    third_party.acquire = counted
    served = Served()
    locks = [
        Lock(unique, backend=third_party, env_load=False, retry_interval=0.1, lease_duration=NEVER)
        for _ in range(20)
    ]
    holder = Lock(unique, backend=third_party._backend, env_load=False, lease_duration=NEVER)
    await holder.acquire()  # past the third party, as another process does
    start = current_time()
    async with anyio.create_task_group() as tasks:
        for number, lock in enumerate(locks):
            tasks.start_soon(served.once, lock, number)
        await anyio.sleep(10)
        assert 80 <= len(asked) <= 130  # one contender, not twenty
        await holder.release()
    assert len(served.order) == 20
    assert current_time() - start < 10 + 20 * 0.12


async def test_without_word_from_the_backend_the_retry_interval_counts(near, other, unique):
    class Deaf(Watched):
        wakes = False

        def on_turn(self, name, wake):
            return lambda: None

    backend = Deaf(near)
    holder, lock = patient_lock(other, unique), patient_lock(backend, unique, retry_interval=0.05)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Served().once, lock, 0, SOON)
        await until(lambda: backend.calls["acquire_or_enqueue"] >= 5)
        await holder.release()


async def test_a_lost_word_is_made_up_for(near, other, unique):
    class Forgetful(Watched):
        def on_turn(self, name, wake):
            return lambda: None

    backend = Forgetful(near)
    backend.backend.on_turn(unique, lambda: None)
    holder, lock = patient_lock(other, unique), patient_lock(backend, unique)
    await can_hear(near)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Served().once, lock, 0, SOON)
        await until_waiting(backend, unique, 1)
        await holder.release()
    assert backend.calls["acquire_or_enqueue"] <= 4


# Elections

TIMES = {"lease_duration": 60, "renew_deadline": 50, "retry_interval": 30, "backend_timeout": 5}


@pytest.fixture
async def elections(where, request):
    """Return backends of two processes."""
    if where.startswith("memory"):
        provider = MemoryProvider()
        yield provider.leaderelection(), provider.leaderelection()
        return
    url = request.getfixturevalue(f"{where}_url")
    async with (
        new_provider(where, url).leaderelection() as one,
        new_provider(where, url).leaderelection() as two,
    ):
        yield one, two


def candidate(backend, name, **settings):
    return LeaderElection(name, backend=backend, env_load=False, **{**TIMES, **settings})


async def test_a_candidate_takes_over_at_once_when_the_leader_stops(elections, unique):
    """It would have asked again half a minute later."""
    leading, waiting = (candidate(backend, unique) for backend in elections)
    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as first:
            await first.start(leading)
            with anyio.fail_after(SOON):
                await leading.wait_for_leader()
                await tasks.start(waiting)
                await until(lambda: waiting.record is not None)
                await can_hear(elections[1])
            first.cancel_scope.cancel()
        with anyio.fail_after(SOON):
            await waiting.wait_for_leader()
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "anyio_backend", [virtual_asyncio(), virtual_trio()], ids=["virtual-asyncio", "virtual-trio"]
)
@pytest.mark.parametrize("where", ["memory"])
@pytest.mark.parametrize("end", ["word lost", "expiry"])
async def test_a_candidate_that_hears_nothing_polls_and_sleeps_to_the_end_of_the_lease(where, end, unique):
    class Deaf(MemoryLeaderElectionAdapter):
        def on_vacancy(self, name, wake):
            return lambda: None

    provider = MemoryProvider()
    backend = Deaf(provider=provider)
    lease = 10.0
    retry = 3.0 if end == "word lost" else 1000.0
    record = await backend.acquire_or_renew(name=unique, token="dead", duration=lease)
    election = candidate(backend, unique, retry_interval=min(retry, 9.0), lease_duration=60, retry_jitter=0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(election)
        start = current_time()
        if end == "word lost":
            await anyio.sleep(0.5)
            await backend.release(name=unique, token=record.holder)
        await election.wait_for_leader()
        taken = current_time() - start
        tasks.cancel_scope.cancel()
    if end == "word lost":
        assert 2.5 <= taken <= 3.5
    else:
        assert lease - 0.5 <= taken <= lease + 0.5
