"""What the API server can answer instead, and what becomes of it: tried again, or reported."""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus

import anyio
import pytest

from grelmicro.coordination import Lock, LockAcquireError
from grelmicro.errors import ProviderError
from grelmicro.providers.kubernetes import KubernetesProvider
from grelmicro.testing.conformance._base import concurrently
from tests.support.proxy import Proxy

LONG = 30.0
CALL = 2.0


@pytest.fixture
async def strict(own_strict_kube):
    """Return a provider for a strict API that the test may break."""
    async with KubernetesProvider(kubeconfig=own_strict_kube.kubeconfig, call_timeout=CALL) as provider:
        await provider.check()
        own_strict_kube.requests.clear()
        yield provider


def verbs(kube):
    return [verb for verb, _ in kube.requests]


class TestForbidden:
    @pytest.mark.parametrize("verb", ["get", "create", "update"])
    async def test_the_message_names_the_verb_and_the_rule(self, own_strict_kube, strict, unique, verb):
        locks = strict.lock()
        if verb != "create":
            await locks.acquire(name=unique, token="a", duration=LONG)
        own_strict_kube.requests.clear()
        own_strict_kube.forbid(verb)
        with pytest.raises(ProviderError) as caught:
            await (
                locks.locked(name=unique)
                if verb == "get"
                else locks.acquire(name=unique, token="a", duration=LONG)
            )
        for part in (f'"{verb}" is forbidden', 'namespace "default"', "coordination.k8s.io", "leases"):
            assert part in str(caught.value)
        assert verbs(own_strict_kube) == [verb]
        assert caught.value.__cause__.status == HTTPStatus.FORBIDDEN

    async def test_a_real_server_with_a_role_that_lacks_it(self, kube_server, unique):
        kube_server.allow("get", "create")
        async with KubernetesProvider(kubeconfig=kube_server.kubeconfig_of("lease-token")) as provider:
            locks = provider.lock()
            await provider.check()
            assert await locks.acquire(name=unique, token="a", duration=LONG) is not None
            with pytest.raises(ProviderError, match='"update" is forbidden'):
                await locks.release(name=unique, token="a")
            kube_server.allow("get", "create", "update")
            assert await locks.release(name=unique, token="a") is True
            kube_server.allow()
            with pytest.raises(ProviderError, match='"get" is forbidden'):
                await provider.check()
            with pytest.raises(ProviderError, match='"get" is forbidden'):
                await locks.locked(name=unique)

    async def test_wrong_credentials(self, kube_server, unique):
        async with KubernetesProvider(kubeconfig=kube_server.kubeconfig_of("nobodys")) as provider:
            with pytest.raises(ProviderError, match="does not accept the credentials") as caught:
                await provider.lock().acquire(name=unique, token="a", duration=LONG)
            assert "nobodys" not in str(caught.value)

    async def test_a_lock_reports_it_as_its_own_error(self, own_strict_kube, strict, unique):
        own_strict_kube.forbid("create")
        with pytest.raises(LockAcquireError, match='"create" is forbidden'):
            await Lock(unique, backend=strict.lock(), env_load=False).acquire()


class TestPassing:
    @pytest.mark.parametrize("code", [429, 500, 502, 503, 504])
    async def test_it_is_tried_again(self, own_strict_kube, strict, unique, code):
        locks = strict.lock()
        for verb in ("create", "update", "get"):
            own_strict_kube.answer(code, verb, times=2)
            assert await locks.acquire(name=unique, token="a", duration=LONG) is not None
            assert await locks.owned(name=unique, token="a") is True
        assert await locks.release(name=unique, token="a") is True

    async def test_the_server_says_how_long_to_wait(self, own_strict_kube, strict, unique):
        own_strict_kube.answer(429, "create", retry_after="1")
        start = anyio.current_time()
        assert await strict.lock().acquire(name=unique, token="a", duration=LONG) is not None
        assert anyio.current_time() - start >= 1

    async def test_longer_than_there_is_time_is_an_error_at_once(self, own_strict_kube, strict, unique):
        own_strict_kube.answer(429, "create", retry_after="3600")
        with anyio.fail_after(CALL / 2), pytest.raises(ProviderError, match="is busy"):
            await strict.lock().acquire(name=unique, token="a", duration=LONG)
        assert verbs(own_strict_kube) == ["create"]

    async def test_it_is_reported_when_it_does_not_pass(self, own_strict_kube, strict, unique):
        own_strict_kube.answer(503, times=1000)
        with anyio.fail_after(2 * CALL), pytest.raises(ProviderError, match="API server failed") as caught:
            await strict.lock().acquire(name=unique, token="a", duration=LONG)
        assert caught.value.__cause__.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert 3 <= len(own_strict_kube.requests) < 30


class TestPermanent:
    @pytest.mark.parametrize("code", [400, 405, 413, 415])
    async def test_it_is_reported_at_once(self, own_strict_kube, strict, unique, code):
        own_strict_kube.answer(code, "create")
        with pytest.raises(ProviderError) as caught:
            await strict.lock().acquire(name=unique, token="a", duration=LONG)
        assert caught.value.__cause__.status == code
        assert verbs(own_strict_kube) == ["create"]

    async def test_a_lease_that_the_server_finds_invalid_is_not_sent_for_ever(
        self, own_strict_kube, strict, unique
    ):
        own_strict_kube.answer(422, "create", times=1000)
        with pytest.raises(ProviderError, match="invalid"):
            await strict.lock().acquire(name=unique, token="a", duration=LONG)
        assert verbs(own_strict_kube) == ["create", "get", "create"]

    async def test_a_namespace_that_does_not_exist(self, kube):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig, namespace="nowhere") as provider:
            with pytest.raises(ProviderError, match='namespaces "nowhere" not found'):
                await provider.lock().acquire(name="x", token="a", duration=LONG)


class TestRaces:
    async def test_a_conflict_is_read_and_judged(self, provider, other, unique):
        """Each side's memory of the Lease is out of date whenever the other has written."""
        sides = [provider.lock(), other.lock()]
        fences = []
        for turn in range(10):
            side = sides[turn % 2]
            fences.append(await side.acquire(name=unique, token=f"t{turn}", duration=LONG))
            assert await sides[(turn + 1) % 2].acquire(name=unique, token="x", duration=LONG) is None
            assert await side.release(name=unique, token=f"t{turn}") is True
        assert fences == sorted(set(fences))

    async def test_a_lease_that_is_deleted_again_and_again_is_created_again(
        self, own_strict_kube, strict, unique
    ):
        locks = strict.lock()
        fences = []
        for _ in range(3):
            fences.append(await locks.acquire(name=unique, token="a", duration=LONG))
            own_strict_kube.delete(locks.lease_name(unique))
        assert fences == sorted(set(fences))

    @pytest.mark.parametrize("code", [404, 409, 422])
    async def test_whatever_the_server_calls_it(self, own_strict_kube, strict, unique, code):
        locks = strict.lock()
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        own_strict_kube.answer(code, "update")
        assert await locks.acquire(name=unique, token="a", duration=LONG) == fence


class TestStrangeReplies:
    @pytest.mark.parametrize("body", ["", "[]", "<html>", '{"kind": "Lease"}', '{"kind": "Status"}'])
    async def test_one_that_is_no_lease_is_never_an_answer(self, own_strict_kube, unique, body):
        async with KubernetesProvider(kubeconfig=own_strict_kube.kubeconfig, call_timeout=0.2) as provider:
            locks = provider.lock()
            await locks.acquire(name=unique, token="b", duration=LONG)
            for code in (200, 404):
                for _ in range(60):
                    own_strict_kube.garble(body, "get", code=code)
                calls = (
                    partial(locks.locked, name=unique),
                    partial(locks.owned, name=unique, token="b"),
                    partial(locks.acquire, name=unique, token="a", duration=LONG),
                    partial(locks.release, name=unique, token="a"),
                )
                for call in calls:
                    with pytest.raises(ProviderError):
                        await call()
                own_strict_kube.heal()

    async def test_one_strange_reply_is_got_over(self, own_strict_kube, strict, unique):
        locks = strict.lock()
        own_strict_kube.garble("<html>", "get")
        assert await locks.locked(name=unique) is False


class TestNetwork:
    @pytest.fixture
    def proxy(self, own_strict_kube):
        with Proxy(own_strict_kube.address) as proxy:
            yield proxy

    @pytest.fixture
    def proxied(self, own_strict_kube, proxy):
        text = own_strict_kube.kubeconfig.read_text().replace(str(own_strict_kube.port), str(proxy.port))
        path = own_strict_kube.directory / "proxied"
        path.write_text(text)
        return path

    @pytest.fixture
    async def through(self, proxied):
        async with KubernetesProvider(kubeconfig=proxied, call_timeout=CALL) as provider:
            yield provider

    async def test_opening_makes_no_round_trip(self, proxy, through):
        assert proxy.accepted == 0

    async def test_an_api_server_that_is_away_is_an_error_and_comes_back(self, proxy, through, unique):
        proxy.refuse()
        proxy.cut()
        for call in (through.check, partial(through.lock().acquire, name=unique, token="a", duration=LONG)):
            with anyio.fail_after(CALL), pytest.raises(ProviderError, match="cannot connect") as caught:
                await call()
            assert caught.value.__cause__ is not None
        proxy.heal()
        await through.check()
        assert await through.lock().acquire(name=unique, token="a", duration=LONG) is not None

    async def test_connections_that_were_cut_are_replaced(self, proxy, through, unique):
        locks = through.lock()
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        for _ in range(3):
            proxy.cut()
            assert await locks.acquire(name=unique, token="a", duration=LONG) == fence
            proxy.cut()
            assert await locks.owned(name=unique, token="a") is True

    async def test_a_black_hole_ends_in_time_and_is_forgotten_afterwards(self, proxy, through, unique):
        locks = through.lock()
        fence = await locks.acquire(name=unique, token="a", duration=LONG)
        proxy.black_hole()
        with anyio.fail_after(1.5 * CALL), pytest.raises(ProviderError):
            await locks.acquire(name=unique, token="a", duration=LONG)
        proxy.cut()
        proxy.heal()
        assert await locks.acquire(name=unique, token="a", duration=LONG) == fence

    async def test_hundreds_of_calls_share_a_few_connections(self, proxy, proxied, unique):
        async with KubernetesProvider(kubeconfig=proxied, call_timeout=60) as provider:
            take = partial(provider.lock().acquire, token="a", duration=LONG)
            fences = await concurrently([partial(take, name=f"{unique}-{number}") for number in range(300)])
        assert all(fences)
        assert proxy.accepted <= 32

    async def test_calls_about_one_lease_are_decided_together(self, own_strict_kube, through, unique):
        await through.check()
        own_strict_kube.requests.clear()
        take = partial(through.lock().acquire, name=unique, duration=LONG)
        fences = await concurrently([partial(take, token=f"t{number}") for number in range(300)])
        assert [fence for fence in fences if fence] == [fences[0]]
        assert len(own_strict_kube.requests) < 5

    async def test_a_call_not_yet_sent_is_dropped_when_its_caller_goes(
        self, own_strict_kube, through, unique
    ):
        locks = through.lock()
        await through.check()
        own_strict_kube.freeze()
        tasks = [
            asyncio.create_task(locks.acquire(name=f"{unique}-{number}", token="a", duration=LONG))
            for number in range(100)
        ]
        await anyio.to_thread.run_sync(own_strict_kube.wait_frozen, 32)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        own_strict_kube.thaw()
        await through.check()
        assert len(own_strict_kube.leases()) <= 32
