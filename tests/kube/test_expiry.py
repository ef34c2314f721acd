"""Expiry by this process's own monotonic clock, since it first saw what the holder wrote."""

from __future__ import annotations

import anyio
import pytest

from grelmicro.providers._kubernetes import clock, line
from grelmicro.providers._kubernetes.names import Place
from grelmicro.providers._kubernetes.observations import Observations
from grelmicro.providers._kubernetes.record import parse
from grelmicro.providers.kubernetes import KubernetesProvider
from tests.kube.support import FIXTURES

LONG = 30.0
HOUR = 3600.0
SHORT = 0.4


@pytest.fixture(params=["kubernetes"])
def place(request):
    """Run the test on the strict Lease API; the suites let leases lapse on a real server, too."""
    return request.param


@pytest.fixture
def skew(monkeypatch):
    """Let this process's wall clock be wrong by that many seconds, from now on."""
    right = line.wall_time

    def skew(seconds):
        for module in (line, clock):
            monkeypatch.setattr(module, "wall_time", lambda: right() + seconds)

    return skew


@pytest.fixture
async def third(kube):
    """Return a provider as a process that has just started has it."""
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
        yield provider


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
class TestAWrongClock:
    @pytest.fixture(params=FIXTURES)
    def place(self, request):
        return request.param

    async def test_neither_steals_nor_waits_for_ever(self, provider, other, skew, unique, seconds):
        fence = await provider.lock().acquire(name=unique, token="a", duration=1.0)
        skew(seconds)
        start = anyio.current_time()
        assert await other.lock().acquire(name=unique, token="b", duration=LONG) is None
        await anyio.sleep(start + 0.5 - anyio.current_time())
        assert await other.lock().acquire(name=unique, token="b", duration=LONG) is None
        await anyio.sleep(start + 1.2 - anyio.current_time())
        assert await other.lock().acquire(name=unique, token="b", duration=LONG) > fence

    async def test_neither_steals_an_election_nor_waits_for_ever(
        self, provider, other, skew, unique, seconds
    ):
        skew(seconds)
        await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=1.0)
        skew(0)
        elections, start = other.leaderelection(), anyio.current_time()
        for _ in range(2):
            record = await elections.acquire_or_renew(name=unique, token="b", duration=LONG)
            assert record.holder == "a"
        await anyio.sleep(start + 1.2 - anyio.current_time())
        record = await elections.acquire_or_renew(name=unique, token="b", duration=LONG)
        assert (record.holder, record.transitions) == ("b", 1)


async def test_wrong_clocks_mint_fences_in_order_also_when_the_lease_is_gone(own_strict_kube, skew, unique):
    kube = own_strict_kube
    async with (
        KubernetesProvider(kubeconfig=kube.kubeconfig) as provider,
        KubernetesProvider(kubeconfig=kube.kubeconfig) as other,
    ):
        locks, fences = provider.lock(), []
        for side, seconds in ((provider, 0), (other, -HOUR), (other, HOUR), (provider, 0)):
            skew(seconds)
            await side.check()  # a reply that tells the time
            fences.append(await side.lock().acquire(name=unique, token="a", duration=LONG))
            await side.lock().release(name=unique, token="a")
            kube.delete(locks.lease_name(unique))
            kube.clock_ahead += 3  # what the Date of a reply does not tell
        assert fences == sorted(set(fences))


async def test_fences_follow_the_servers_clock(own_strict_kube, unique):
    own_strict_kube.clock_ahead = HOUR
    async with KubernetesProvider(kubeconfig=own_strict_kube.kubeconfig) as provider:
        fence = await provider.lock().acquire(name=unique, token="a", duration=LONG)
        assert abs(fence / 1e6 - clock.wall_time() - HOUR) < 5


async def test_the_duration_is_the_holders_and_not_ones_own(provider, other, unique):
    await provider.lock().acquire(name=unique, token="a", duration=LONG)
    for _ in range(3):
        assert await other.lock().acquire(name=unique, token="b", duration=0.1) is None
        await anyio.sleep(0.15)


async def test_a_process_new_to_a_lease_waits_for_it_from_its_first_sight(provider, third, unique):
    fence = await provider.lock().acquire(name=unique, token="a", duration=SHORT)
    await anyio.sleep(2 * SHORT)  # long over
    locks, start = third.lock(), anyio.current_time()
    assert await locks.acquire(name=unique, token="b", duration=LONG) is None
    assert await locks.locked(name=unique) is True
    await anyio.sleep(start + SHORT + 0.1 - anyio.current_time())
    assert await locks.locked(name=unique) is False
    assert await locks.acquire(name=unique, token="b", duration=LONG) > fence


async def test_what_was_released_is_free_at_once_for_everybody(provider, third, unique):
    locks, elections = provider.lock(), provider.leaderelection()
    fence = await locks.acquire(name=unique, token="a", duration=LONG)
    await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
    await locks.release(name=unique, token="a")
    await elections.release(name=unique, token="a")
    assert await third.lock().acquire(name=unique, token="b", duration=LONG) > fence
    record = await third.leaderelection().acquire_or_renew(name=unique, token="b", duration=LONG)
    assert record.holder == "b"


async def test_what_was_deleted_is_free_at_once(kube, provider, other, unique):
    locks = provider.lock()
    fence = await locks.acquire(name=unique, token="a", duration=LONG)
    assert await other.lock().locked(name=unique) is True
    kube.delete(locks.lease_name(unique))
    assert await locks.owned(name=unique, token="a") is False
    assert await other.lock().acquire(name=unique, token="b", duration=LONG) > fence
    assert await locks.acquire(name=unique, token="a", duration=LONG) is None
    assert await locks.release(name=unique, token="a") is False


async def test_a_holder_whose_lease_was_deleted_can_take_it_anew(kube, provider, unique):
    locks = provider.lock()
    fence = await locks.acquire(name=unique, token="a", duration=LONG)
    kube.delete(locks.lease_name(unique))
    assert await locks.acquire(name=unique, token="a", duration=LONG) > fence


async def test_labels_and_annotations_of_others_stay_and_prolong_nothing(kube, provider, other, unique):
    locks, peer = provider.lock(), other.lock()
    await locks.acquire(name=unique, token="a", duration=2 * SHORT)
    start = anyio.current_time()
    assert await peer.locked(name=unique) is True
    await anyio.sleep(SHORT)
    lease = kube.leases()[locks.lease_name(unique)]
    lease["metadata"]["annotations"]["team"] = "blue"
    lease["metadata"]["labels"]["team"] = "red"
    kube.put(lease)
    assert await peer.locked(name=unique) is True
    await anyio.sleep(start + 2 * SHORT + 0.1 - anyio.current_time())
    assert await peer.acquire(name=unique, token="b", duration=LONG) is not None
    metadata = kube.leases()[locks.lease_name(unique)]["metadata"]
    assert (metadata["annotations"]["team"], metadata["labels"]["team"]) == ("blue", "red")


async def test_a_renewal_prolongs_it_for_everybody(provider, other, unique):
    locks, peer = provider.lock(), other.lock()
    await locks.acquire(name=unique, token="a", duration=SHORT)
    assert await peer.locked(name=unique) is True
    for _ in range(4):
        await anyio.sleep(SHORT / 2)
        await locks.acquire(name=unique, token="a", duration=SHORT)
        assert await peer.acquire(name=unique, token="b", duration=LONG) is None


async def test_a_lease_that_lapsed_for_its_holder_is_cleared_for_those_who_saw_it_later(
    provider, third, unique
):
    locks = provider.lock()
    await locks.acquire(name=unique, token="a", duration=SHORT)
    await anyio.sleep(SHORT + 0.05)
    assert await locks.release(name=unique, token="a") is False
    assert await third.lock().locked(name=unique) is False


def lease(name, holder, version):
    metadata = {
        "name": name,
        "uid": name,
        "resourceVersion": version,
        "annotations": {"grelmicro/name": name},
    }
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 10, "leaseTransitions": int(version)}
    place = Place("default", name, "lock", name)
    return place, parse(place, {"metadata": metadata, "spec": spec})


class TestObservations:
    """What is remembered is bounded, and forgetting never ends a lease early."""

    def test_the_longest_known_is_forgotten_first_and_then_counts_as_new(self):
        seen = Observations(sights=2, records=1)
        for now, name in enumerate("abc"):
            place, record = lease(name, "x", "1")
            seen.note(place, record, float(now))
            assert seen.judged(place, record).expires_at == now + 10
        place, record = lease("a", "x", "1")
        assert seen.judged(place, record).expires_at == float("inf")
        seen.note(place, record, 100.0)
        assert seen.judged(place, record).expires_at == 110
        assert seen.known(place) is record
        assert seen.known(lease("c", "x", "1")[0]) is None

    def test_seeing_it_again_changes_nothing_until_it_is_written(self):
        seen = Observations()
        place, record = lease("a", "x", "1")
        seen.note(place, record, 0.0)
        seen.note(place, record, 5.0)
        assert seen.judged(place, record).expires_at == 10
        _, renewed = lease("a", "x", "2")
        seen.note(place, renewed, 5.0)
        assert seen.judged(place, renewed).expires_at == 15
        assert seen.judged(place, record).expires_at == float("inf")

    def test_a_free_or_missing_one_takes_no_room(self):
        seen = Observations()
        place, record = lease("a", "x", "1")
        seen.note(place, record, 0.0)
        _, free = lease("a", "", "2")
        seen.note(place, free, 1.0)
        assert not seen._sights
        assert seen.judged(place, free).holder == ""
        seen.note(place, None, 1.0)
        assert not seen._records
        assert seen.judged(place, None) is None
