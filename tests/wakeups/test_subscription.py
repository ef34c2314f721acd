"""The connection by which Redis wakes us: cut, silent, slow, refused, and how waiting goes on meanwhile."""

from __future__ import annotations

import logging

import anyio
import pytest

from grelmicro.coordination import LockAcquireError
from grelmicro.providers import _listening as subscription
from grelmicro.providers._redis.dispatch import RESP2, SingleDispatcher, connected
from grelmicro.providers.redis import RedisProvider
from tests.support.proxy import Proxy
from tests.wakeups.support import (
    NEVER,
    SOON,
    Served,
    can_hear,
    patient_lock,
    until_waiting,
)

pytestmark = pytest.mark.variant("redis")


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def wire(redis_server, monkeypatch):
    """Return a network that only subscriptions pass through."""
    with Proxy(redis_server.address) as proxy:

        async def subscriber(self):
            pool = self._client.connection_pool
            host, port = proxy.address
            options = {**pool.connection_kwargs, **RESP2, "host": host, "port": port}
            return await connected(pool.connection_class(**options))

        monkeypatch.setattr(SingleDispatcher, "subscriber", subscriber)
        yield proxy


@pytest.fixture
async def backends(redis_server):
    async with (
        RedisProvider(redis_server.url, env_load=False).lock() as one,
        RedisProvider(redis_server.url, env_load=False).lock() as two,
    ):
        yield one, two


@pytest.fixture
def words(caplog):
    """Return what was said about being woken, so far, by level."""
    caplog.set_level(logging.INFO, logger="grelmicro.providers")
    return lambda: [record.levelname for record in caplog.records if record.name == "grelmicro.providers"]


async def deaf(backend):
    with anyio.fail_after(SOON):
        while backend.wakes:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def pass_on(holding, backend, name, **settings):
    """Show that a waiter of one backend gets the lock that the other frees."""
    holder, lock = patient_lock(holding, name), patient_lock(backend, name, **settings)
    await holder.acquire(timeout=SOON)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Served().once, lock, 0, SOON)
        await until_waiting(backend, name, 1)
        await holder.release()


def listen_to(backend, name):
    """Keep listening, so that there is a subscription to break."""
    return backend.on_turn(name, lambda: None)


async def test_a_cut_subscription_comes_back_by_itself(wire, backends, unique, words):
    one, two = backends
    stop = listen_to(two, unique)
    await can_hear(two)
    wire.refuse()
    wire.cut()
    await deaf(two)
    for _ in range(3):
        await pass_on(one, two, unique, retry_interval=0.02)
    await anyio.sleep(1)  # some more tries, none of which is worth a word
    assert words() == ["INFO", "WARNING"]
    wire.heal()
    await can_hear(two)
    assert words() == ["INFO", "WARNING", "INFO"]
    await pass_on(one, two, unique)
    stop()


async def test_who_waits_is_told_when_words_stop_and_when_they_come_again(
    wire, backends, unique, only_signals
):
    """A poll of minutes would otherwise go on as it was."""
    one, two = backends
    holder, lock = patient_lock(one, unique), patient_lock(two, unique, retry_interval=0.05)
    await holder.acquire()
    served = Served()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.once, lock, 0)
        await until_waiting(two, unique, 1)
        await can_hear(two)
        wire.refuse()
        wire.cut()
        await deaf(two)
        await holder.release()  # unheard
        with anyio.fail_after(SOON):
            while not served.order:  # noqa: ASYNC110
                await anyio.sleep(0.01)
    holder, lock = patient_lock(one, unique), patient_lock(two, unique)
    await holder.acquire()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(served.once, lock, 1)
        await until_waiting(two, unique, 1)
        await holder.release()
        wire.heal()  # only that makes it ask again
        with anyio.fail_after(SOON):
            while len(served.order) < 2:  # noqa: ASYNC110
                await anyio.sleep(0.01)


async def test_a_subscription_that_delivers_nothing_is_found_out(wire, backends, unique, words, monkeypatch):
    monkeypatch.setattr(subscription, "_ECHO_INTERVAL", 0.2)
    one, two = backends
    stop = listen_to(two, unique)
    await can_hear(two)
    wire.black_hole()
    await deaf(two)
    await pass_on(one, two, unique, retry_interval=0.02)
    assert words() == ["INFO", "WARNING"]
    wire.heal()
    wire.cut()
    await can_hear(two)
    await pass_on(one, two, unique)
    assert words() == ["INFO", "WARNING", "INFO"]
    stop()


async def test_until_it_is_found_out_the_safety_poll_counts(wire, backends, unique, words):
    one, two = backends
    stop = listen_to(two, unique)
    await can_hear(two)
    wire.black_hole()
    await pass_on(one, two, unique)
    assert two.wakes
    assert words() == ["INFO"]
    stop()


async def test_one_that_never_worked_is_no_reason_to_wait(wire, backends, unique, words):
    wire.black_hole()
    one, two = backends
    for _ in range(3):
        await pass_on(one, two, unique, retry_interval=0.02)
    assert not two.wakes
    wire.heal()
    wire.cut()


async def test_late_words_are_words(wire, backends, unique, words, only_signals):
    one, two = backends
    stop = listen_to(two, unique)
    await can_hear(two)
    wire.delay(0.3)
    await pass_on(one, two, unique)
    assert words() == ["INFO"]
    stop()


async def test_a_user_who_may_not_listen_polls(own_redis, unique, words):
    own_redis.command("ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
    url = own_redis.url.replace("redis://", "redis://mute:secret@")
    async with (
        RedisProvider(url, env_load=False).lock() as one,
        RedisProvider(url, env_load=False).lock() as two,
    ):
        for _ in range(5):
            await pass_on(one, two, unique, retry_interval=0.05)
        await anyio.sleep(0.5)
        assert not two.wakes
        assert words() == ["WARNING"]
        own_redis.command("ACL", "SETUSER", "mute", "allchannels")
        await can_hear(two)
        assert words() == ["WARNING", "INFO"]
        await pass_on(one, two, unique)


async def test_subscriptions_that_are_dropped_all_the_time_cost_nobody_a_grant(
    redis_server, backends, unique
):
    served = Served()
    working = 2 * 5

    async def work(backend):
        nonlocal working
        lock = patient_lock(backend, unique, retry_interval=0.02)
        for _ in range(60):
            await served.once(lock, backend, SOON)
        working -= 1

    async with anyio.create_task_group() as tasks:
        for backend in backends:
            for _ in range(5):
                tasks.start_soon(work, backend)
        while working:
            await anyio.to_thread.run_sync(redis_server.command, "CLIENT", "KILL", "TYPE", "pubsub")
            await anyio.sleep(0.02)
    assert len(served.order) == 600


async def test_a_hand_over_whose_reply_is_lost_is_made_once(redis_server, unique, only_signals):
    served = Served()
    with Proxy(redis_server.address) as proxy:
        async with RedisProvider(proxy.url(redis_server.url), env_load=False).lock() as backend:
            lock = patient_lock(backend, unique)
            for number in range(5):
                async with (
                    anyio.create_task_group() as tasks,
                    served.hold(lock, f"holder {number}", SOON),
                ):
                    tasks.start_soon(served.once, lock, number, SOON)
                    await until_waiting(backend, unique, 1)
                    await can_hear(backend)
                    await backend.locked(name=unique)
                    proxy.lose_reply()
    assert served.order == [who for number in range(5) for who in (f"holder {number}", number)]


@pytest.mark.parametrize("turn", range(3))
async def test_a_release_cancelled_while_its_reply_is_held_back_serves_the_next(redis_server, unique, turn):
    """Natively, by a scope, and by a timeout; the server has handed over and nobody here knows."""
    served = Served()
    with Proxy(redis_server.address) as proxy:
        async with RedisProvider(proxy.url(redis_server.url), env_load=False).lock() as backend:
            lock = patient_lock(backend, unique)
            ready = anyio.Event()

            async def hold():
                await lock.acquire()
                await until_waiting(backend, unique, 1)
                await can_hear(backend)
                proxy.black_hole(to_server=False)
                ready.set()
                if turn == 1:
                    with anyio.move_on_after(0.1):
                        await lock.release()
                else:
                    await lock.release()

            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()

                async def cancelled():
                    with scope:
                        await hold()

                tasks.start_soon(cancelled)
                with anyio.fail_after(SOON):
                    while not await backend.locked(name=unique):  # noqa: ASYNC110
                        await anyio.sleep(0.01)
                tasks.start_soon(served.once, lock, "next", SOON)
                await ready.wait()
                await anyio.to_thread.run_sync(proxy.wait_held_reply)
                if turn == 0:
                    scope.cancel()
                await anyio.sleep(0.15)
                proxy.heal()
    assert served.order == ["next"]


async def test_when_the_server_dies_all_in_line_hear_of_it_and_go_on_when_they_ask_again(own_redis, unique):
    url = own_redis.url
    async with RedisProvider(url, env_load=False, call_timeout=2).lock() as backend:
        holder, lock = patient_lock(backend, unique), patient_lock(backend, unique)
        await holder.acquire()
        served, failures = Served(), []

        async def wait(number):
            while True:
                try:
                    return await served.once(lock, number, 3 * SOON)
                except LockAcquireError as error:
                    failures.append((number, error))
                    await anyio.sleep(0.2)

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(wait, number)
            await until_waiting(backend, unique, 20)
            await anyio.to_thread.run_sync(own_redis.kill)
            with anyio.fail_after(SOON):
                while {number for number, _ in failures} != set(range(20)):  # noqa: ASYNC110
                    await anyio.sleep(0.01)
            await anyio.to_thread.run_sync(own_redis.start)
    assert sorted(served.order) == list(range(20))
    assert all(error.__cause__ is not None for _, error in failures)
    assert NEVER > 3 * SOON
