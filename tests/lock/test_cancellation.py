"""Cancelled while the reply is under way: nothing stays held, and everybody goes on working."""

from __future__ import annotations

import asyncio
import random
from functools import partial

import anyio
import pytest
from anyio.lowlevel import checkpoint

from grelmicro.coordination import LockNotOwnedError, LockTimeoutError
from grelmicro.testing.conformance._base import cancelled_natively, concurrently
from tests.lock.places import LEASE, SOON, lock_on, take_and_free

TURNS = range(21)

HELD_BACK = [0.1, pytest.param(1.0, marks=pytest.mark.soak)]
"""Seconds between the last cancellation and the first reply."""


class Interrupted:
    """A call in a task of its own that can be cancelled in one of three ways."""

    def __init__(self, how, call):
        self.how, self.call = how, call
        self.finished = False
        self.scope = anyio.CancelScope()
        self.limit = asyncio.timeout(None)
        self.task = asyncio.create_task(getattr(self, how)())

    async def native(self):
        await self.call()
        self.finished = True

    async def anyio(self):
        with self.scope:
            await self.call()
            self.finished = True

    async def timeout(self):
        async with self.limit:
            await self.call()
            self.finished = True

    def cancel(self):
        match self.how:
            case "native":
                self.task.cancel()
            case "anyio":
                self.scope.cancel()
            case "timeout":
                self.limit.reschedule(asyncio.get_running_loop().time())

    async def end(self):
        """Wait for the end, which must be a cancellation that arrived."""
        await asyncio.wait([self.task])
        match self.how:
            case "native":
                assert self.task.cancelled()
            case "anyio":
                assert self.task.exception() is None
                assert self.scope.cancelled_caught
            case "timeout":
                assert type(self.task.exception()) is TimeoutError
        assert self.finished is False


class HeldBack:
    """Replies are held back from when everybody is ready until a while after everybody was cancelled."""

    def __init__(self, network, seconds, uses):
        self.network, self.seconds, self.uses = network, seconds, uses
        self.to_cancel = len(uses)
        self.all_cancelled = anyio.Event()

    async def run(self):
        for use in self.uses:
            await use.ready.wait()
        self.network.black_hole(to_server=False)
        for use in self.uses:
            use.go.set()
        await self.all_cancelled.wait()
        await anyio.sleep(self.seconds)
        self.network.heal()

    async def cancel(self, use, turns, cancel):
        """Cancel a use that many turns after its last call began."""
        await use.started.wait()
        for _ in range(turns):
            await checkpoint()
        cancel()
        self.to_cancel -= 1
        if not self.to_cancel:
            self.all_cancelled.set()


class Use:
    """What a task does until it is cancelled: undisturbed up to `ready`, with late replies after `go`."""

    def __init__(self, lock):
        self.lock = lock
        self.ready, self.go, self.started = anyio.Event(), anyio.Event(), anyio.Event()

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


@pytest.mark.parametrize("seconds", HELD_BACK)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_cancelled_at_any_turn_with_the_reply_held_back_nothing_stays_held(
    place, near, unique, operation, seconds
):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        runs = [(how, turns) for how in ("anyio", "native", "timeout") for turns in TURNS]
        uses = {run: Use(lock_on(backend, f"{unique}-{run[0]}-{run[1]}")) for run in runs}
        held_back = HeldBack(network, seconds, uses.values())

        async def run(use, how, turns):
            interrupted = Interrupted(how, getattr(use, operation))
            await held_back.cancel(use, turns, interrupted.cancel)
            await interrupted.end()
            await take_and_free(near, use.lock.name)

        await concurrently([held_back.run, *(partial(run, use, *one) for one, use in uses.items())])

        async def works(lock):
            async with lock as handle:
                assert await near.owned(name=lock.name, token=handle.token) is True

        await concurrently([partial(works, use.lock) for use in uses.values()])


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_a_task_that_survives_its_cancellation_can_acquire_again(place, near, unique, operation):
    async with place.far() as (backend, network):
        await take_and_free(backend, unique)
        uses = {turns: Use(lock_on(backend, f"{unique}-{turns}")) for turns in TURNS}
        held_back = HeldBack(network, 0.05, uses.values())

        async def run(use, turns):
            limit = asyncio.timeout(None)

            def cancel():
                limit.reschedule(asyncio.get_running_loop().time())

            cancelling = asyncio.create_task(held_back.cancel(use, turns, cancel))
            with pytest.raises(TimeoutError):
                async with limit:
                    await getattr(use, operation)()
            await cancelling
            handle = await use.lock.acquire(timeout=SOON)
            assert await near.owned(name=use.lock.name, token=handle.token) is True
            await use.lock.release()

        await concurrently([held_back.run, *(partial(run, use, turns) for turns, use in uses.items())])


async def test_an_interrupted_extend_leaves_the_lock_held_by_the_task(place, near, unique):
    async with place.far() as (backend, network):
        lock = lock_on(backend, unique)
        handle = await lock.acquire()
        network.delay(0.05)
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
    print(f"seed {seed}")  # noqa: T201
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
