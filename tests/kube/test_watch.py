"""Waiting by watch: at once, without polling, over every interruption; and by polling where it must be."""

from __future__ import annotations

import asyncio
import logging

import anyio
import anyio.to_thread
import pytest

from grelmicro.coordination import LeaderElection, Lock
from grelmicro.providers._kubernetes import watch as watching
from grelmicro.providers.kubernetes import KubernetesProvider
from tests.kube.support import until
from tests.support.proxy import Proxy

LONG = 30.0
NEVER = 25.0
"""Seconds of a retry interval that no test waits for."""


@pytest.fixture
def kube(own_strict_kube):
    return own_strict_kube


@pytest.fixture
def no_safety_poll(monkeypatch):
    """Let no safety poll come to the rescue."""
    from grelmicro.coordination import _line

    monkeypatch.setattr(_line, "_SAFETY_POLL", NEVER)


def lock_on(provider, name, **settings):
    return Lock(name, backend=provider.lock(), env_load=False, **{"retry_interval": NEVER, **settings})


def verbs(kube):
    return [verb for verb, _ in kube.requests]


class Ear:
    """Listens to one name with one provider."""

    def __init__(self, provider, name):
        self.woken = asyncio.Event()
        self.stop = provider.lock().on_turn(name, self.woken.set)
        self._wakes = lambda: provider.lock().wakes

    async def ready(self):
        await until(self._wakes)
        self.woken.clear()

    async def wait(self):
        async with asyncio.timeout(10):
            await self.woken.wait()
        self.woken.clear()


@pytest.fixture
async def holder(kube):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
        yield provider


async def queued(holder, waiting, name):
    """Hold the lock, with the other process in the queue."""
    await holder.lock().acquire(name=name, token="a", duration=LONG)
    await waiting.lock().acquire_or_enqueue(name=name, token="b", duration=LONG)


async def test_a_waiter_gets_a_released_lock_at_once_and_does_not_poll(kube, holder, no_safety_poll, unique):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        held = lock_on(holder, unique)
        await held.acquire()
        ear = Ear(waiting, f"{unique}-other")
        await ear.ready()
        task = asyncio.create_task(lock_on(waiting, unique).acquire(timeout=10))
        await until(lambda: "grelmicro/queue" in str(kube.leases()))
        kube.requests.clear()
        await asyncio.sleep(0.5)
        assert kube.requests == []
        await held.release()
        await task
        assert len(kube.requests) < 8


async def test_on_a_real_server(kube_server, no_safety_poll, unique):
    async with (
        KubernetesProvider(kubeconfig=kube_server.kubeconfig) as one,
        KubernetesProvider(kubeconfig=kube_server.kubeconfig) as two,
    ):
        for number, (holder, waiting) in enumerate([(one, two), (two, one)]):
            await hand_on(kube_server, holder, waiting, f"{unique}-{number}")


async def hand_on(kube_server, holder, waiting, name):
    held = lock_on(holder, name)
    await held.acquire()
    task = asyncio.create_task(lock_on(waiting, name).acquire(timeout=10))
    await until(lambda: "grelmicro/queue" in str(kube_server.leases()[held.backend.lease_name(name)]))
    await held.release()
    await task


async def test_a_candidate_leads_as_soon_as_the_leader_lets_go(kube, holder, unique):
    settings = {"retry_interval": 5, "renew_deadline": 20, "lease_duration": 25, "env_load": False}
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting, anyio.create_task_group() as group:
        candidate = LeaderElection(unique, backend=waiting.leaderelection(), **settings)
        async with anyio.create_task_group() as first:
            leader = LeaderElection(unique, backend=holder.leaderelection(), **settings)
            await first.start(leader)
            await leader.wait_for_leader()
            await group.start(candidate)
            await until(lambda: waiting.leaderelection().wakes)
            await asyncio.sleep(0.2)
            first.cancel_scope.cancel()
        async with asyncio.timeout(2):
            await candidate.wait_for_leader()
        group.cancel_scope.cancel()


async def test_a_watch_that_ends_goes_on_where_it_was(kube, holder, unique, monkeypatch):
    monkeypatch.setattr(watching, "_SECONDS", 1.0)
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        ear = Ear(waiting, unique)
        await ear.ready()
        await until(lambda: verbs(kube).count("watch") >= 3)
        assert verbs(kube).count("list") == 1
        assert not ear.woken.is_set()
        await queued(holder, waiting, unique)
        await holder.lock().release(name=unique, token="a")
        await ear.wait()


async def test_what_happened_while_it_was_cut_off_is_told(kube, holder, unique):
    with Proxy(kube.address) as proxy:
        path = kube.directory / "proxied"
        path.write_text(kube.kubeconfig.read_text().replace(str(kube.port), str(proxy.port)))
        async with KubernetesProvider(kubeconfig=path) as waiting:
            ear = Ear(waiting, unique)
            await ear.ready()
            await queued(holder, waiting, unique)
            proxy.refuse()
            proxy.cut()
            await until(lambda: not waiting.lock().wakes)
            await holder.lock().release(name=unique, token="a")
            proxy.heal()
            await ear.wait()
            assert waiting.lock().wakes is True
            await queued(holder, waiting, unique)
            await holder.lock().release(name=unique, token="a")
            await ear.wait()


async def test_a_past_that_the_server_forgot_makes_everybody_look(kube, holder, unique, monkeypatch):
    monkeypatch.setattr(watching, "_SECONDS", 1.0)
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        ear = Ear(waiting, unique)
        await ear.ready()
        for number in range(3):
            await holder.lock().acquire(name=f"{unique}-{number}", token="a", duration=LONG)
        kube.answer(410, "watch")
        await ear.wait()
        assert verbs(kube).count("list") == 2
        await queued(holder, waiting, unique)
        await holder.lock().release(name=unique, token="a")
        await ear.wait()


async def test_an_expired_version_inside_the_stream_does_too(kube, holder, unique, monkeypatch):
    monkeypatch.setattr(watching, "_SECONDS", 1.0)
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        ear = Ear(waiting, unique)
        await ear.ready()
        watch = waiting.exchange.watch("default")
        await holder.lock().acquire(name=f"{unique}-2", token="a", duration=LONG)
        (lease,) = kube.leases().values()
        await until(lambda: watch._version == lease["metadata"]["resourceVersion"])
        kube.compact()
        watch._version = "1"  # as if it had been away for long
        await ear.wait()
        assert watch.is_up


@pytest.mark.parametrize("verb", ["watch", "list"])
async def test_without_the_right_to_watch_waiters_poll_and_it_is_said_once(
    kube, holder, unique, verb, caplog
):
    kube.forbid(verb)
    with caplog.at_level(logging.WARNING, "grelmicro.providers"):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
            held = lock_on(holder, unique)
            await held.acquire()
            task = asyncio.create_task(lock_on(waiting, unique, retry_interval=0.05).acquire(timeout=10))
            await asyncio.sleep(0.5)
            assert waiting.lock().wakes is False
            await held.release()
            await task
    messages = [record.message for record in caplog.records if "polls" in record.message]
    assert len(messages) == 1
    assert f'"{verb}" is forbidden' in messages[0]


async def test_it_runs_only_while_somebody_listens(kube, unique, monkeypatch):
    monkeypatch.setattr(watching, "_SECONDS", 0.5)
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
        assert provider.lock().wakes is False
        ear = Ear(provider, unique)
        await ear.ready()
        ear.stop()
        await until(lambda: not provider.lock().wakes)
        again = Ear(provider, unique)
        await again.ready()


async def test_closed_backends_do_not_wake(kube):
    assert KubernetesProvider(kubeconfig=kube.kubeconfig).lock().wakes is False


async def test_a_lease_deleted_by_hand_wakes(kube, holder, unique):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        ear = Ear(waiting, unique)
        await ear.ready()
        await queued(holder, waiting, unique)
        kube.delete(holder.lock().lease_name(unique))
        await ear.wait()


async def test_entering_the_queue_prolongs_no_lease(kube, holder, unique):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as waiting:
        locks, start = waiting.lock(), anyio.current_time()
        await holder.lock().acquire(name=unique, token="a", duration=0.4)
        refusal = await locks.acquire_or_enqueue(name=unique, token="b", duration=LONG)
        assert 0 < refusal.remaining <= 0.4
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as third:
            await third.lock().acquire_or_enqueue(name=unique, token="c", duration=LONG)
        await anyio.sleep(start + 0.6 - anyio.current_time())
        assert await locks.acquire(name=unique, token="b", duration=LONG) is not None
        assert await holder.lock().owned(name=unique, token="a") is False
