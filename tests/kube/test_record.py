"""What is written into a Lease, and what is read from one that others wrote."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import partial

import anyio
import pytest

from grelmicro.coordination.kubernetes import KubernetesLockAdapter, KubernetesScheduleAdapter
from grelmicro.errors import ProviderError
from grelmicro.providers._kubernetes import line

LONG = 30.0
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def stored(kube, adapter, name):
    return kube.leases()[adapter.lease_name(name)]


def foreign(name, **spec):
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


async def test_a_lock_looks_as_kubectl_expects(kube, provider, unique):
    locks = provider.lock()
    fence = await locks.acquire(name=unique, token="a", duration=LONG)
    lease = stored(kube, locks, unique)
    assert lease["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "grelmicro",
        "grelmicro/kind": "lock",
    }
    annotations = lease["metadata"]["annotations"]
    assert annotations["grelmicro/name"] == unique
    assert annotations["grelmicro/fence"] == str(fence)
    spec = lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 30, 0)
    assert MICRO_TIME.fullmatch(spec["acquireTime"])
    assert spec["renewTime"] == spec["acquireTime"]

    await locks.acquire(name=unique, token="a", duration=LONG)
    renewed = stored(kube, locks, unique)["spec"]
    assert renewed["acquireTime"] == spec["acquireTime"] < renewed["renewTime"]
    assert renewed["leaseTransitions"] == 0

    await locks.release(name=unique, token="a")
    released = stored(kube, locks, unique)["spec"]
    assert (released["holderIdentity"], released["leaseDurationSeconds"]) == ("", 1)

    await locks.acquire(name=unique, token="b", duration=LONG)
    taken = stored(kube, locks, unique)["spec"]
    assert (taken["holderIdentity"], taken["leaseTransitions"]) == ("b", 1)
    assert taken["acquireTime"] == taken["renewTime"] > renewed["renewTime"]


@pytest.mark.parametrize(("duration", "seconds"), [(0.001, 1), (0.5, 1), (1, 1), (1.5, 2), (59.0, 59)])
async def test_seconds_are_rounded_up_and_the_exact_duration_stands_beside_them(
    kube, provider, other, unique, duration, seconds
):
    elections = provider.leaderelection()
    record = await elections.acquire_or_renew(name=unique, token="a", duration=duration)
    lease = stored(kube, elections, unique)
    assert lease["spec"]["leaseDurationSeconds"] == seconds
    assert lease["metadata"]["annotations"]["grelmicro/duration"] == repr(float(duration))
    assert record.lease_duration == duration
    seen = await other.leaderelection().acquire_or_renew(name=unique, token="b", duration=LONG)
    assert seen.lease_duration in (duration, LONG)  # it may be over by now


async def test_a_time_without_a_fraction_has_six_digits(kube, provider, unique, monkeypatch):
    monkeypatch.setattr(line, "wall_time", lambda: 1_764_547_200.0)
    for duration in (LONG, LONG):
        record = await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=duration)
    spec = stored(kube, provider.leaderelection(), unique)["spec"]
    assert spec["renewTime"] == "2025-12-01T00:00:00.000000Z"
    assert record.renewed_at == datetime(2025, 12, 1, tzinfo=UTC)


async def test_a_clock_that_stands_still_does_not_keep_a_renewal_from_being_seen(
    provider, other, unique, monkeypatch
):
    monkeypatch.setattr(line, "wall_time", lambda: 1_764_547_200.0)
    locks, peer = provider.lock(), other.lock()
    await locks.acquire(name=unique, token="a", duration=0.4)
    for _ in range(4):
        assert await peer.acquire(name=unique, token="b", duration=LONG) is None
        await anyio.sleep(0.2)
        await locks.acquire(name=unique, token="a", duration=0.4)


class TestOtherTools:
    """client-go's candidates, and people with kubectl."""

    @pytest.fixture
    def elections(self, provider):
        return provider.leaderelection()

    @pytest.fixture
    def put(self, kube, elections, unique):
        def put(**spec):
            return kube.put(foreign(elections.lease_name(unique), **spec))

        return put

    async def test_the_record_of_client_go_is_read(self, elections, put, unique):
        time = "2026-01-01T00:00:00.000000Z"
        put(
            holderIdentity="go_1",
            leaseDurationSeconds=15,
            acquireTime=time,
            renewTime=time,
            leaseTransitions=4,
        )
        record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        assert record == await elections.get(name=unique)
        assert (record.holder, record.lease_duration, record.transitions) == ("go_1", 15.0, 4)
        assert record.acquired_at == record.renewed_at == datetime(2026, 1, 1, tzinfo=UTC)
        assert dict(record.metadata) == {}

    async def test_what_client_go_released_is_taken_over_and_counted(self, elections, put, unique):
        time = "2026-01-01T00:00:00.000001Z"
        put(holderIdentity="", leaseDurationSeconds=1, acquireTime=time, renewTime=time, leaseTransitions=4)
        assert await elections.get(name=unique) is None
        record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        assert (record.holder, record.transitions) == ("a", 5)

    async def test_what_client_go_let_lapse_is_taken_over(self, elections, put, unique):
        put(holderIdentity="go_1", leaseDurationSeconds=1, leaseTransitions=0)
        start = anyio.current_time()
        assert (await elections.acquire_or_renew(name=unique, token="a", duration=LONG)).holder == "go_1"
        await anyio.sleep(start + 1.2 - anyio.current_time())
        record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        assert (record.holder, record.transitions) == ("a", 1)

    async def test_what_client_go_took_over_is_not_read_with_our_annotations(
        self, kube, elections, put, unique
    ):
        await elections.acquire_or_renew(name=unique, token="a", duration=0.5, metadata={"pod": "a"})
        lease = stored(kube, elections, unique)
        lease["spec"] |= {"holderIdentity": "go_1", "renewTime": "2030-01-01T00:00:00.000000Z"}
        kube.put(lease)
        record = await elections.get(name=unique)
        assert (record.holder, record.lease_duration, dict(record.metadata)) == ("go_1", 1.0, {})

    @pytest.mark.parametrize("holder", ["", None])
    async def test_a_lease_without_holder_is_free(self, elections, put, unique, holder):
        put(**({} if holder is None else {"holderIdentity": holder}))
        assert await elections.get(name=unique) is None
        assert (await elections.acquire_or_renew(name=unique, token="a", duration=LONG)).holder == "a"

    async def test_a_holder_who_says_nothing_else_is_believed_for_a_while(self, elections, put, unique):
        put(holderIdentity="kubectl")
        record = await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        assert (record.holder, record.lease_duration, record.transitions) == ("kubectl", 15.0, 0)
        assert record.acquired_at == record.renewed_at
        assert abs((record.renewed_at - datetime.now(UTC)).total_seconds()) < 60

    async def test_what_is_not_ours_survives(self, kube, elections, unique):
        lease = foreign(elections.lease_name(unique), holderIdentity="")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"}
        lease["metadata"] |= {"finalizers": ["example.com/x"], "ownerReferences": [owner]}
        kube.put(lease)
        await elections.acquire_or_renew(name=unique, token="a", duration=LONG)
        metadata = stored(kube, elections, unique)["metadata"]
        assert metadata["finalizers"] == ["example.com/x"]
        assert metadata["ownerReferences"][0]["name"] == "p"
        metadata["finalizers"] = []
        kube.put(stored(kube, elections, unique) | {"metadata": metadata})


def calls_of(adapter, name):
    """Return every call there is, the one that writes first."""
    if isinstance(adapter, KubernetesScheduleAdapter):
        return [partial(adapter.claim, name, 1.0), partial(adapter.last_fired, name)]
    release = partial(adapter.release, name=name, token="a")
    if isinstance(adapter, KubernetesLockAdapter):
        acquire = partial(adapter.acquire, name=name, token="a", duration=LONG)
        owned = partial(adapter.owned, name=name, token="a")
        return [acquire, release, owned, partial(adapter.locked, name=name)]
    campaign = partial(adapter.acquire_or_renew, name=name, token="a", duration=LONG)
    return [campaign, release, partial(adapter.get, name=name)]


class TestUnreadable:
    """Something else in the way is an error that says so, and is left alone."""

    @pytest.mark.parametrize("kind", ["lock", "schedule"])
    async def test_a_lease_of_somebody_else(self, kube, provider, unique, kind):
        adapter = getattr(provider, kind)()
        lease = kube.put(foreign(adapter.lease_name(unique), holderIdentity="node-1"))
        for call in calls_of(adapter, unique):
            with pytest.raises(ProviderError, match="something else") as caught:
                await call()
            assert adapter.lease_name(unique) in str(caught.value)
        assert (
            stored(kube, adapter, unique)["metadata"]["resourceVersion"]
            == lease["metadata"]["resourceVersion"]
        )

    @pytest.mark.parametrize(
        ("kind", "key", "value"),
        [
            ("lock", "name", "other"),
            ("lock", "fence", "x"),
            ("lock", "duration", "long"),
            ("leaderelection", "name", "other"),
            ("leaderelection", "metadata", "["),
            ("leaderelection", "metadata", "[1]"),
            ("leaderelection", "metadata", "null"),
            ("schedule", "fired", "noon"),
        ],
    )
    async def test_an_annotation_that_makes_no_sense(self, kube, provider, unique, kind, key, value):
        adapter = getattr(provider, kind)()
        for call in calls_of(adapter, unique)[:1]:
            await call()
        lease = stored(kube, adapter, unique)
        lease["metadata"]["annotations"][f"grelmicro/{key}"] = value
        lease = kube.put(lease)
        for call in calls_of(adapter, unique):
            with pytest.raises(ProviderError, match="cannot be read"):
                await call()
        assert stored(kube, adapter, unique)["spec"] == lease["spec"]

    async def test_metadata_too_long_for_a_lease_is_an_error(self, provider, unique):
        metadata = {"x": "y" * 300_000}
        elections = provider.leaderelection()
        with pytest.raises(ProviderError, match="invalid"):
            await elections.acquire_or_renew(name=unique, token="a", duration=LONG, metadata=metadata)
        assert await elections.get(name=unique) is None


@pytest.mark.parametrize("duration", [0, -1, 2**31, float("inf"), float("nan")])
async def test_a_lease_that_is_no_length_of_time_is_refused(provider, unique, duration):
    with pytest.raises(ValueError, match="duration"):
        await provider.lock().acquire(name=unique, token="a", duration=duration)
    with pytest.raises(ValueError, match="duration"):
        await provider.leaderelection().acquire_or_renew(name=unique, token="a", duration=duration)


async def test_an_empty_token_is_refused(provider, unique):
    with pytest.raises(ValueError, match="token"):
        await provider.lock().acquire(name=unique, token="", duration=LONG)


async def test_a_due_time_comes_back_exactly(kube, provider, unique):
    schedules = provider.schedule()
    for due in (0.1, 1 / 3, 1_796_151_572.0127961, 2.0**53, 1e300):
        assert await schedules.claim(unique, due) is True
        assert await schedules.last_fired(unique) == due
    assert json.loads(stored(kube, schedules, unique)["metadata"]["annotations"]["grelmicro/fired"]) == 1e300
    for due in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="due"):
            await schedules.claim(unique, due)
