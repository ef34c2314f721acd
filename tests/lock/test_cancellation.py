"""Cancelled while the reply is under way: nothing stays held, and everybody goes on working."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import LockNotOwnedError, LockTimeoutError
from grelmicro.testing.conformance._base import cancelled_by_scope, cancelled_natively, concurrently
from tests.lock.places import LEASE, SOON, lock_on, take_and_free

TURNS = range(21)

HOLD_BACK = [0.3, pytest.param(1.0, marks=pytest.mark.soak)]


async def cancelled_by_timeout(call, turns, *, after):
    """Let `asyncio.timeout` end the call that many turns after `after`; say whether that was too late."""
    limits = []

    async def run():
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await call()

    task = asyncio.create_task(run())
    await after.wait()
    for _ in range(turns):
        await checkpoint()
    if task.done():
        task.result()
        return True
    limits[0].reschedule(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await task
    return False


CANCELLATIONS = {
    "anyio": cancelled_by_scope,
    "native": cancelled_natively,
    "timeout": cancelled_by_timeout,
}


class Use:
    """What a task does until it is cancelled: up to `ready` undisturbed, after `go` with replies held back."""

    def __init__(self, lock, go):
        self.lock, self.go = lock, go
        self.ready, self.started = anyio.Event(), anyio.Event()

    async def wait(self):
        self.ready.set()
        await self.go.wait()
        self.started.set()

    async def acquire(self):
        await self.wait()
        await self.lock.acquire()
        await anyio.sleep_forever()

    async def acquire_nowait(self):
        await self.wait()
        await self.lock.acquire_nowait()
        await anyio.sleep_forever()

    async def enter(self):
        await self.wait()
        async with self.lock:
            await anyio.sleep_forever()

    async def extend(self):
        async with self.lock:
            await self.wait()
            await self.lock.extend()

    async def release(self):
        await self.lock.acquire()
        await self.wait()
        await self.lock.release()

    async def leave(self):
        async with self.lock:
            await self.wait()


OPERATIONS = [
    "acquire",
    pytest.param("acquire_nowait", marks=pytest.mark.soak),
    "enter",
    "extend",
    "release",
    "leave",
]


@pytest.mark.parametrize("seconds", HOLD_BACK)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_at_any_turn_with_the_reply_held_back_nothing_stays_held(
    place, near, unique, operation, seconds
):
    async with place.far() as (backend, network):
        go = anyio.Event()
        runs = [(f"{unique}-{how}-{turns}", how, turns) for how in CANCELLATIONS for turns in TURNS]
        uses = [Use(lock_on(backend, name), go) for name, _, _ in runs]

        too_late = []

        async def works(lock):
            async with lock as handle:
                assert await near.owned(name=lock.name, token=handle.token) is True

        async def run(use, name, how, turns):
            too_late.append(await CANCELLATIONS[how](getattr(use, operation), turns, after=use.started))
            await take_and_free(near, name)

        async def start():
            for use in uses:
                await use.ready.wait()
            network.delay(seconds)
            go.set()

        await concurrently([start, *(partial(run, use, *one) for use, one in zip(uses, runs, strict=True))])
        assert sum(too_late) < len(runs) / 2, "the replies were not held back"
        network.heal()
        await concurrently([partial(works, use.lock) for use in uses])


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_task_that_survives_its_cancellation_can_acquire_again(place, near, unique, operation):
    async with place.far() as (backend, network):
        go = anyio.Event()
        interrupted = []
        uses = {f"{unique}-{turns}": Use(lock_on(backend, f"{unique}-{turns}"), go) for turns in TURNS}

        async def run(name, use, turns):
            limits = []

            async def limit():
                await use.started.wait()
                for _ in range(turns):
                    await checkpoint()
                limits[0].reschedule(asyncio.get_running_loop().time())

            task = asyncio.create_task(limit())
            with suppress(TimeoutError):
                async with asyncio.timeout(None) as scope:
                    limits.append(scope)
                    await getattr(use, operation)()
            await task
            interrupted.append(scope.expired())
            handle = await use.lock.acquire(timeout=SOON)
            assert await near.owned(name=name, token=handle.token) is True
            await use.lock.release()

        async def start():
            for use in uses.values():
                await use.ready.wait()
            network.delay(0.2)
            go.set()

        await concurrently(
            [start, *(partial(run, name, use, turns) for turns, (name, use) in enumerate(uses.items()))]
        )
        assert sum(interrupted) > len(TURNS) / 2, "the replies were not held back"


async def test_an_interrupted_extend_leaves_the_lock_held_by_the_task(place, near, unique):
    async with place.far() as (backend, network):
        lock = lock_on(backend, unique)
        handle = await lock.acquire()
        network.delay(0.2)
        for turns in range(6):
            with anyio.move_on_after(turns * 0.001):
                await lock.extend()
        assert await near.owned(name=unique, token=handle.token) is True
        assert 0 < handle.expires_in() <= LEASE
        again = await lock.extend()
        assert again.fencing_token == handle.fencing_token
        await lock.release()
        await take_and_free(near, unique)


async def test_cancelled_while_waiting_for_a_busy_lock_takes_nothing(place, near, unique):
    async with place.far() as (backend, network):
        holder = lock_on(near, unique)
        handle = await holder.acquire()
        network.delay(0.2)
        go = anyio.Event()
        waiters = [lock_on(backend, unique) for _ in TURNS]

        async def run(lock, turns):
            assert await cancelled_natively(lock.acquire, turns, after=go) is False

        async def start():
            go.set()

        await concurrently([start, *(partial(run, lock, turns) for turns, lock in enumerate(waiters))])
        assert await near.owned(name=unique, token=handle.token) is True
        await holder.release()
        await take_and_free(near, unique)
        with pytest.raises(LockNotOwnedError):
            await waiters[0].release()


async def test_out_of_time_with_the_reply_held_back_nothing_stays_held(place, near, unique):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        network.delay(0.5)
        with pytest.raises(LockTimeoutError):
            await lock_on(backend, unique).acquire(timeout=0.1)
        await take_and_free(near, unique)


async def test_cancelling_the_whole_program_frees_what_it_was_about_to_get(place, near, unique):
    """The clean-up still has its say when the provider is closed right after the cancellation."""

    async def program(backend_ready):
        async with place.far() as (backend, network):
            await take_and_free(backend, unique)
            network.delay(0.2)
            backend_ready.set()
            await lock_on(backend, unique).acquire()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        ready = anyio.Event()
        tasks.start_soon(program, ready)
        await ready.wait()
        for _ in range(5):
            await checkpoint()
        tasks.cancel_scope.cancel()
    await take_and_free(near, unique)


@pytest.mark.parametrize("rounds", [60, pytest.param(500, marks=pytest.mark.soak)])
async def test_every_answer_belongs_to_its_own_call_after_random_cancellations(
    server_place, unique, rounds, request
):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    settings = {"pool_max_size": 1} if request.node.callspec.params["server_place"] == "postgres" else {}
    async with server_place.near(**settings) as backend, server_place.near() as other:
        for number in range(rounds):
            victim = lock_on(backend, f"{unique}-victim-{number}")
            operation = chance.choice(["acquire", "extend", "release", "locked"])

            async def interrupted(victim=victim, operation=operation):
                if operation in ("extend", "release"):
                    await victim.acquire()
                await getattr(victim, operation)()

            task = asyncio.create_task(interrupted())
            await anyio.sleep(chance.uniform(0, 0.003))
            task.cancel()
            lock = lock_on(backend, f"{unique}-{number}")
            handle = await lock.acquire(timeout=SOON)
            name = handle.name
            assert name == f"{unique}-{number}"
            assert await other.owned(name=name, token=handle.token) is True
            assert await other.acquire(name=name, token="another", duration=LEASE) is None
            same = await other.acquire(name=name, token=handle.token, duration=LEASE)
            assert same == handle.fencing_token
            await lock.release()
            await asyncio.wait([task])
