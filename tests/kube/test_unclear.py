"""Writes without an answer: recognised when they took effect, harmless when they land late."""

from __future__ import annotations

import asyncio
from functools import partial

import anyio
import anyio.to_thread
import pytest

from grelmicro.coordination import Lock
from grelmicro.errors import ProviderError
from grelmicro.providers.kubernetes import KubernetesProvider

LONG = 30.0
CALL = 0.8
"""Seconds that a call may take where nothing answers; a request half of that."""
REQUEST = 0.3


@pytest.fixture
def kube(own_strict_kube):
    return own_strict_kube


@pytest.fixture
async def provider(kube):
    """Return a provider whose requests are given up soon, and its calls late."""
    async with KubernetesProvider(kubeconfig=kube.kubeconfig, call_timeout=5.0) as provider:
        await provider.check()
        provider._api._request_timeout = REQUEST
        yield provider


@pytest.fixture
async def hasty(kube):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig, call_timeout=CALL) as provider:
        await provider.check()
        yield provider


def verbs(kube):
    return [verb for verb, _ in kube.requests]


def only(kube):
    (lease,) = kube.leases().values()
    return lease


async def used(locks, name):
    """Leave a Lease that nobody holds."""
    await locks.acquire(name=name, token="before", duration=LONG)
    await locks.release(name=name, token="before")


class TestLostReplies:
    """The write took effect, and its reply was lost or an error."""

    @pytest.fixture(params=["reset", "500", "503", "504", "garbled"])
    def lose(self, request, kube):
        def lose(verb):
            if request.param == "reset":
                kube.lose_reply(verb)
            elif request.param == "garbled":
                kube.garble("<html>", verb, apply=True)
            else:
                kube.answer(int(request.param), verb, apply=True)

        return lose

    async def test_of_a_first_acquire(self, kube, provider, lose, unique):
        locks = provider.lock()
        lose("create")
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        assert only(kube)["metadata"]["annotations"]["grelmicro/fence"] == str(fence)
        assert verbs(kube).count("create") == 1
        assert "update" not in verbs(kube)
        assert await locks.acquire(name=unique, token="a", duration=LONG) == fence

    async def test_of_an_acquire_and_a_renewal(self, kube, provider, lose, unique):
        locks = provider.lock()
        await used(locks, unique)
        lose("update")
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        lose("update")
        assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
        assert await locks.owned(name=unique, token="a") is True

    async def test_of_a_release(self, kube, provider, lose, unique):
        locks = provider.lock()
        await locks.acquire(name=unique, token="a", duration=LONG)
        lose("update")
        assert await locks.release(name=unique, token="a") is True
        assert only(kube)["spec"]["holderIdentity"] == ""

    async def test_of_a_campaign(self, kube, provider, lose, unique):
        elections = provider.leaderelection()
        lose("create")
        record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG, metadata={"x": "y"})
        assert (record.holder, record.transitions) == ("a", 0)
        assert await elections.get(name=unique) == record

    async def test_of_a_claim(self, kube, provider, lose, unique):
        schedules = provider.schedule()
        for number, verb in enumerate(("create", "update")):
            lose(verb)
            assert await schedules.claim(unique, 60.0 + number) is True
            assert await schedules.claim(unique, 60.0 + number) is False


async def test_a_lease_counts_from_before_the_write_whose_reply_was_lost(kube, provider, unique):
    locks = provider.lock()
    kube.answer(503, "create", apply=True)
    kube.hold("get")
    start = anyio.current_time()
    task = asyncio.create_task(locks.acquire(name=unique, token="a", duration=0.5))
    await anyio.to_thread.run_sync(kube.wait_held)
    await anyio.sleep(0.25)
    kube.let_go()
    assert await task is not None
    await anyio.sleep(start + 0.6 - anyio.current_time())
    assert await locks.locked(name=unique) is False


class TestLateWrites:
    """The write is still on its way when its caller has given up."""

    @pytest.fixture(params=["create", "update"])
    async def verb(self, request, provider, unique):
        if request.param == "update":
            await used(provider.lock(), unique)
        return request.param

    async def test_the_call_itself_makes_it_harmless(self, kube, provider, verb, unique):
        locks = provider.lock()
        kube.hold(verb)
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        assert fence is not None
        before = kube.leases()
        kube.let_go()
        assert kube.leases() == before

    async def test_a_release_makes_it_harmless(self, kube, provider, verb, unique):
        locks = provider.lock()
        kube.hold(verb)
        task = asyncio.create_task(locks.acquire(name=unique, token="a", duration=LONG))
        await anyio.to_thread.run_sync(kube.wait_held)
        task.cancel()
        assert await locks.release(name=unique, token="a") is False
        kube.let_go()
        assert only(kube)["spec"]["holderIdentity"] == ""
        assert await locks.locked(name=unique) is False
        assert await locks.acquire(name=unique, token="b", duration=LONG) is not None

    async def test_the_end_of_an_election_makes_it_harmless(self, kube, provider, unique):
        elections = provider.leaderelection()
        kube.hold("create")
        task = asyncio.create_task(elections.acquire_or_renew(name=unique, token="a", duration=LONG))
        await anyio.to_thread.run_sync(kube.wait_held)
        task.cancel()
        assert await elections.release(name=unique, token="a") is False
        kube.let_go()
        assert await elections.get(name=unique) is None

    async def test_no_second_holder_comes_of_it(self, kube, provider, verb, unique):
        """A gives up, B takes it, then A's write comes."""
        locks = provider.lock()
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as other:
            kube.hold(verb)
            task = asyncio.create_task(locks.acquire(name=unique, token="a", duration=LONG))
            await anyio.to_thread.run_sync(kube.wait_held)
            task.cancel()
            fence = await other.lock().acquire(name=unique, token="b", duration=LONG)
            kube.let_go()
            assert await other.lock().owned(name=unique, token="b") is True
            assert await locks.owned(name=unique, token="a") is False
            assert await locks.release(name=unique, token="a") is False
            assert await other.lock().acquire(name=unique, token="b", duration=LONG) == fence

    async def test_a_late_renewal_does_not_bring_back_what_was_released(self, kube, provider, unique):
        locks = provider.lock()
        await locks.acquire(name=unique, token="a", duration=LONG)
        kube.hold("update")
        task = asyncio.create_task(locks.acquire(name=unique, token="a", duration=LONG))
        await anyio.to_thread.run_sync(kube.wait_held)
        task.cancel()
        assert await locks.release(name=unique, token="a") is True
        kube.let_go()
        assert await locks.locked(name=unique) is False

    async def test_a_late_release_does_not_free_what_was_renewed(self, kube, provider, unique):
        locks = provider.lock()
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        kube.hold("update")
        kube.answer(403, "get")
        with pytest.raises(ProviderError):
            await locks.release(name=unique, token="a")
        assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
        kube.let_go()
        assert await locks.owned(name=unique, token="a") is True


class TestFrozen:
    """As with etcd stopped: nothing is answered, and everything that was asked is done later."""

    async def test_every_call_ends_in_time_with_an_error(self, kube, hasty, unique):
        locks, elections, schedules = hasty.lock(), hasty.leaderelection(), hasty.schedule()
        await locks.acquire(name=unique, token="a", duration=LONG)
        kube.freeze()
        calls = [
            partial(locks.acquire, name=f"{unique}-2", token="a", duration=LONG),
            partial(locks.acquire, name=unique, token="a", duration=LONG),
            partial(locks.release, name=unique, token="a"),
            partial(locks.locked, name=unique),
            partial(elections.acquire_or_renew, name=unique, token="a", duration=LONG),
            partial(elections.get, name=unique),
            partial(schedules.claim, unique, 1.0),
            hasty.check,
        ]

        async def fails(call):
            with anyio.fail_after(CALL + 5), pytest.raises(ProviderError, match="no usable reply"):
                await call()

        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(fails, call)
        kube.thaw()
        await hasty.check()
        assert await locks.locked(name=f"{unique}-3") is False

    async def test_a_lock_given_up_meanwhile_is_free_in_the_end(self, kube, provider, unique):
        kube.freeze()
        lock = Lock(unique, backend=provider.lock(), lease_duration=LONG, env_load=False)
        with pytest.raises(TimeoutError):
            await lock.acquire(timeout=0.1)
        await anyio.to_thread.run_sync(kube.wait_frozen, 1)
        kube.thaw()
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as other:
            with anyio.fail_after(5):
                await Lock(unique, backend=other.lock(), retry_interval=0.02, env_load=False).acquire()


async def test_a_claim_that_was_overtaken_unseen_is_an_error_and_never_a_refusal(kube, provider, unique):
    schedules = provider.schedule()
    await schedules.claim(unique, 1.0)
    kube.answer(503, "update", apply=True)
    kube.hold("get")
    task = asyncio.create_task(schedules.claim(unique, 2.0))
    await anyio.to_thread.run_sync(kube.wait_held)
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as other:
        assert await other.schedule().claim(unique, 3.0) is True
    kube.let_go()
    with pytest.raises(ProviderError, match="overtaken"):
        await task


async def test_closing_waits_for_what_is_under_way(kube, unique):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig, call_timeout=5.0) as provider:
        locks = provider.lock()
        await locks.acquire(name=unique, token="a", duration=LONG)
        kube.hold("update")
        task = asyncio.create_task(locks.release(name=unique, token="a"))
        await anyio.to_thread.run_sync(kube.wait_held)
        asyncio.get_running_loop().call_later(0.1, kube.let_go)
    assert await task is True
    assert only(kube)["spec"]["holderIdentity"] == ""


async def test_closing_is_over_within_a_calls_time_when_nothing_answers(kube, unique):
    async with KubernetesProvider(kubeconfig=kube.kubeconfig, call_timeout=CALL) as provider:
        kube.freeze()
        task = asyncio.create_task(provider.lock().acquire(name=unique, token="a", duration=LONG))
        await anyio.to_thread.run_sync(kube.wait_frozen, 1)
        start = anyio.current_time()
    assert anyio.current_time() - start < CALL + 5
    with pytest.raises(ProviderError):
        await task
