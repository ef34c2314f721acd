"""What released locks and dead holders leave behind is deleted, and nothing else."""

from __future__ import annotations

import logging
from functools import partial

import anyio
import pytest

from grelmicro.providers._kubernetes import collector as collecting
from grelmicro.providers._kubernetes.collector import Collector
from grelmicro.providers.kubernetes import KubernetesProvider
from grelmicro.testing.conformance._base import concurrently
from tests.kube.support import until

LONG = 30.0


@pytest.fixture
def kube(own_strict_kube):
    return own_strict_kube


@pytest.fixture
def retention(monkeypatch):
    """Keep released Leases that many seconds, by whatever opens after this."""

    def retention(seconds):
        monkeypatch.setattr(collecting, "RETENTION", seconds)

    return retention


@pytest.fixture
def opened(kube):
    return lambda: KubernetesProvider(kubeconfig=kube.kubeconfig)


async def test_locks_used_once_are_deleted_after_a_while(kube, opened, retention, unique):
    retention(0.3)
    async with opened() as provider:
        locks = provider.lock()

        async def once(number):
            await locks.acquire(name=f"{unique}-{number}", token="a", duration=LONG)
            await locks.release(name=f"{unique}-{number}", token="a")

        await concurrently([partial(once, number) for number in range(50)])
        assert kube.leases()
        await until(lambda: not kube.leases())


async def test_locks_in_use_again_elections_and_schedules_stay(kube, opened, retention, unique):
    retention(0.2)
    async with opened() as provider, opened() as other:
        locks, peer, elections = provider.lock(), other.lock(), provider.leaderelection()
        for name, again in (("mine", locks), ("others", peer)):
            await locks.acquire(name=unique + name, token="a", duration=LONG)
            await locks.release(name=unique + name, token="a")
            assert await again.acquire(name=unique + name, token="b", duration=LONG) is not None
        await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        await elections.release(name=unique, token="a")
        await provider.schedule().claim(unique, 1.0)
        stay = set(kube.leases())
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        await until(lambda: set(kube.leases()) == stay)
        await anyio.sleep(0.4)
        assert set(kube.leases()) == stay


async def test_fences_grow_over_a_deletion(kube, opened, retention, unique):
    retention(0.05)
    fences = []
    async with opened() as provider, opened() as other:
        for turn in range(6):
            locks = (provider if turn % 2 else other).lock()
            fences.append(await locks.acquire(name=unique, token="a", duration=LONG))
            assert await locks.release(name=unique, token="a") is True
            await until(lambda: not kube.leases())
    assert fences == sorted(set(fences))


def collector_of(provider, retention):
    collector = Collector(provider._api, "test", retention=retention)
    collector._namespaces.add("default")
    return collector


async def test_a_sweep_finds_what_others_left_once_it_has_watched_it_long_enough(kube, opened, unique):
    async with opened() as provider:
        locks = provider.lock()
        for name, duration in (("released", LONG), ("dead", 0.1), ("held", LONG)):
            await locks.acquire(name=unique + name, token="a", duration=duration)
        await locks.release(name=unique + "released", token="a")
    async with opened() as provider:
        collector = collector_of(provider, 0.2)
        await collector.sweep()
        assert len(kube.leases()) == 3
        await anyio.sleep(0.35)
        await collector.sweep()
        assert set(kube.leases()) == {provider.lock().lease_name(unique + "held")}


async def test_a_sweep_deletes_what_was_released_long_ago_at_once(kube, opened, unique):
    async with opened() as provider:
        locks = provider.lock()
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        kube.clock_ahead = 3700.0
        await provider.check()
        await collector_of(provider, 3600).sweep()
        assert kube.leases() == {}


async def test_a_sweep_leaves_what_was_renewed_meanwhile_and_what_is_not_ours(kube, opened, unique):
    labels = {"app.kubernetes.io/managed-by": "grelmicro", "grelmicro/kind": "lock"}
    kube.put({"metadata": {"name": "foreign", "labels": labels}, "spec": {}})
    async with opened() as provider:
        locks, collector = provider.lock(), collector_of(provider, 0.2)
        await locks.acquire(name=unique, token="a", duration=0.1)
        await collector.sweep()
        await anyio.sleep(0.35)
        await locks.acquire(name=unique, token="b", duration=LONG)
        await collector.sweep()
        assert set(kube.leases()) == {"foreign", locks.lease_name(unique)}


async def test_a_sweep_goes_through_every_page(kube, opened, unique, monkeypatch):
    monkeypatch.setattr(collecting, "_PAGE", 7)
    async with opened() as provider:
        locks = provider.lock()
        for number in range(30):
            await locks.acquire(name=f"{unique}-{number}", token="a", duration=LONG)
            await locks.release(name=f"{unique}-{number}", token="a")
        collector = collector_of(provider, 0)
        await collector.sweep()
        await collector.sweep()
        assert kube.leases() == {}


async def test_without_the_right_to_delete_it_says_so_once_and_locks_work(
    kube, opened, retention, unique, caplog
):
    retention(0.05)
    kube.forbid("delete")
    with caplog.at_level(logging.WARNING, "grelmicro.providers"):
        async with opened() as provider:
            locks = provider.lock()
            for number in range(5):
                assert await locks.acquire(name=f"{unique}-{number}", token="a", duration=LONG)
                assert await locks.release(name=f"{unique}-{number}", token="a") is True
            await until(lambda: caplog.records)
            await anyio.sleep(0.2)
    assert len(caplog.records) == 1
    assert '"delete" is forbidden' in caplog.text
    assert [verb for verb, _ in kube.requests].count("delete") == 1


async def test_without_the_right_to_list_it_says_so_once(
    kube, opened, retention, unique, caplog, monkeypatch
):
    monkeypatch.setattr(collecting, "_FIRST_SWEEP", 0.02)
    kube.forbid("list")
    async with opened() as provider:
        assert await provider.lock().acquire(name=unique, token="a", duration=LONG)
        await until(lambda: caplog.records)
    assert '"list" is forbidden' in caplog.text


async def test_on_a_real_server(kube_server, retention, unique):
    retention(0.3)
    async with KubernetesProvider(kubeconfig=kube_server.kubeconfig) as provider:
        locks = provider.lock()
        await locks.acquire(name=unique, token="a", duration=LONG)
        await locks.release(name=unique, token="a")
        assert locks.lease_name(unique) in kube_server.leases()
        await until(lambda: locks.lease_name(unique) not in kube_server.leases())
        await locks.acquire(name=unique, token="a", duration=0.1)
        collector = collector_of(provider, 0)
        await collector.sweep()
        await anyio.sleep(0.2)
        await collector.sweep()
        assert locks.lease_name(unique) not in kube_server.leases()
