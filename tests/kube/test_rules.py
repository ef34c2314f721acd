"""What an API server does with Leases: the same for the strict one and the real one."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import anyio
import pytest

from grelmicro.providers._kubernetes.api import LeaseApi
from grelmicro.providers._kubernetes.errors import ApiError
from grelmicro.providers._kubernetes.names import Place
from grelmicro.testing.conformance._base import concurrently

TIME = "2026-01-01T00:00:00.123456+00:00"


@pytest.fixture
async def api(provider):
    return LeaseApi(provider.client, 5.0)


@pytest.fixture
def spot(unique):
    return Place("default", unique, "lock", unique)


def lease(spot, spec=None, **metadata):
    kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    return {**kind, "metadata": {"name": spot.lease, **metadata}, "spec": spec or {}}


async def status(call, *arguments, **keywords):
    with pytest.raises(ApiError) as caught:
        await call(*arguments, **keywords)
    return caught.value.status, caught.value.reason


async def test_what_was_created_comes_back(api, spot):
    spec = {
        "holderIdentity": "a",
        "leaseDurationSeconds": 15,
        "acquireTime": TIME,
        "renewTime": "2026-01-01T02:00:00.000000+02:00",
        "leaseTransitions": 3,
    }
    created = await api.create(spot, lease(spot, spec, annotations={"grelmicro/x": "é\n"}, labels={"a": "b"}))
    assert created == await api.get(spot)
    assert created["spec"] == spec | {
        "acquireTime": "2026-01-01T00:00:00.123456Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
    }
    assert created["metadata"]["annotations"] == {"grelmicro/x": "é\n"}
    assert created["metadata"]["labels"] == {"a": "b"}
    assert {"uid", "resourceVersion", "creationTimestamp", "namespace"} <= created["metadata"].keys()


async def test_one_that_is_missing(api, spot):
    assert await api.get(spot) is None
    missing = await status(api.delete, "default", spot.lease, uid=str(uuid4()), version="1")
    assert missing == (404, "NotFound")


async def test_one_that_exists_cannot_be_created(api, spot):
    await api.create(spot, lease(spot))
    assert await status(api.create, spot, lease(spot)) == (409, "AlreadyExists")


async def test_a_namespace_that_does_not_exist(api, spot, unique):
    nowhere = Place(unique, unique, "lock", unique)
    assert await api.get(nowhere) is None
    assert await status(api.create, nowhere, lease(spot)) == (404, "NotFound")


async def test_creating_with_a_version_is_refused(api, spot):
    assert (await status(api.create, spot, lease(spot, resourceVersion="5")))[0] == 500


async def test_replacing_moves_the_version_and_only_the_latest_can_be_replaced(api, spot):
    first = await api.create(spot, lease(spot))
    second = await api.replace(spot, {**first, "spec": {"holderIdentity": "b"}})
    assert second["metadata"]["resourceVersion"] != first["metadata"]["resourceVersion"]
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert await status(api.replace, spot, {**first, "spec": {"holderIdentity": "c"}}) == (409, "Conflict")
    assert (await api.get(spot))["spec"] == {"holderIdentity": "b"}


async def test_an_identical_replacement_changes_nothing(api, spot):
    first = await api.create(spot, lease(spot, {"holderIdentity": "a"}))
    assert await api.replace(spot, first) == first


async def test_replacing_without_a_version_is_refused(api, spot):
    await api.create(spot, lease(spot))
    assert await status(api.replace, spot, lease(spot)) == (422, "Invalid")


async def test_a_version_that_is_no_number_is_refused(api, spot):
    await api.create(spot, lease(spot))
    assert (await status(api.replace, spot, lease(spot, resourceVersion="x")))[0] == 500


async def test_replacing_what_is_missing_creates_it_unless_a_uid_is_named(api, spot):
    named = lease(spot, resourceVersion="1", uid=str(uuid4()))
    assert await status(api.replace, spot, named) == (409, "Conflict")
    assert await api.get(spot) is None
    await api.replace(spot, lease(spot, {"holderIdentity": "a"}, resourceVersion="1"))
    assert (await api.get(spot))["spec"]["holderIdentity"] == "a"


async def test_replacing_another_of_the_same_name_is_refused(api, spot):
    first = await api.create(spot, lease(spot))
    version = first["metadata"]["resourceVersion"]
    other = lease(spot, resourceVersion=version, uid=str(uuid4()))
    assert await status(api.replace, spot, other) == (409, "Conflict")


async def test_the_name_cannot_change(api, spot):
    first = await api.create(spot, lease(spot))
    renamed = {**first, "metadata": {**first["metadata"], "name": "other"}}
    assert await status(api.replace, spot, renamed) == (400, "BadRequest")


async def test_of_many_writers_one_wins(api, spot):
    first = await api.create(spot, lease(spot))

    async def write(call, body):
        try:
            await call(spot, body)
        except ApiError as error:
            return error.status
        return 200

    for call, body in (
        (api.replace, {**first, "metadata": {**first["metadata"], "annotations": {"x": "1"}}}),
        (api.create, None),
    ):
        if body is None:
            await api.delete("default", spot.lease, **_conditions(await api.get(spot)))
        codes = await concurrently(
            [
                partial(write, call, {**(body or lease(spot)), "spec": {"holderIdentity": str(number)}})
                for number in range(10)
            ]
        )
        assert codes.count(200) == 1
        assert set(codes) == {200, 409}


def _conditions(body):
    return {"uid": body["metadata"]["uid"], "version": body["metadata"]["resourceVersion"]}


async def test_deleting_only_what_it_is_meant_for(api, spot):
    first = await api.create(spot, lease(spot))
    second = await api.replace(spot, {**first, "spec": {"holderIdentity": "b"}})
    stale, other = _conditions(first), _conditions(second) | {"uid": str(uuid4())}
    for conditions in (stale, other):
        assert await status(api.delete, "default", spot.lease, **conditions) == (409, "Conflict")
    await api.delete("default", spot.lease, **_conditions(second))
    assert await api.get(spot) is None


@pytest.mark.parametrize(
    "time",
    [
        *("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.123456"),
        *("2026-01-01T00:00:00.123Z", "2026-01-01T00:00:00.123456789Z", "now", "", 1764547200),
    ],
)
async def test_times_have_six_decimals_and_an_offset(api, spot, time):
    assert await status(api.create, spot, lease(spot, {"renewTime": time})) == (400, "BadRequest")


@pytest.mark.parametrize("seconds", [1.5, 1.0, "15", 2**31, True])
async def test_durations_are_whole_numbers_of_32_bits(api, spot, seconds):
    body = lease(spot, {"leaseDurationSeconds": seconds})
    assert await status(api.create, spot, body) == (400, "BadRequest")


@pytest.mark.parametrize(
    "spec", [{"leaseDurationSeconds": 0}, {"leaseDurationSeconds": -1}, {"leaseTransitions": -1}]
)
async def test_durations_and_transitions_have_a_range(api, spot, spec):
    assert await status(api.create, spot, lease(spot, spec)) == (422, "Invalid")


async def test_the_longest_duration_and_an_empty_holder_are_fine(api, spot):
    spec = {"leaseDurationSeconds": 2**31 - 1, "holderIdentity": "", "leaseTransitions": 0}
    assert (await api.create(spot, lease(spot, spec)))["spec"] == spec


async def test_fields_that_it_does_not_know_are_dropped(api, spot):
    created = await api.create(spot, lease(spot, {"holderIdentity": "a", "colour": "red"}))
    assert created["spec"] == {"holderIdentity": "a"}


@pytest.mark.parametrize("name", ["A", "a_b", "a..b", "-a", "a-", "é", "a b", "a/b", "x" * 254])
async def test_names_are_dns_subdomains(api, name):
    spot = Place("default", name, "lock", name)
    assert (await status(api.create, spot, lease(spot)))[0] in (400, 404, 422)


async def test_a_name_may_have_253_characters(api, unique):
    name = unique + "x" * (253 - len(unique))
    spot = Place("default", name, "lock", name)
    assert (await api.create(spot, lease(spot)))["metadata"]["name"] == name


@pytest.mark.parametrize("labels", [{"a": "x" * 64}, {"a": "b c"}, {"a": "-"}, {"a b": "c"}])
async def test_label_values_are_short_and_plain(api, spot, labels):
    assert await status(api.create, spot, lease(spot, labels=labels)) == (422, "Invalid")


async def test_annotations_have_256_kib(api, spot):
    fits = {"a": "x" * (256 * 1024 - 1)}
    assert await status(api.create, spot, lease(spot, annotations=fits | {"b": "x"})) == (422, "Invalid")
    await api.create(spot, lease(spot, annotations=fits))


async def test_pages(api, spot):
    names = [f"{spot.lease}-{number}" for number in range(5)]
    for name in names:
        here = Place("default", name, "lock", name)
        await api.create(here, lease(here, labels={"test": spot.lease}))
    found, after = [], ""
    while True:
        page = await api.page("default", labels=f"test={spot.lease}", limit=2, after=after)
        assert len(page["items"]) <= 2
        found += [item["metadata"]["name"] for item in page["items"]]
        after = page["metadata"].get("continue", "")
        if not after:
            break
    assert found == names
    one = await api.page("default", fields=f"metadata.name={names[3]}")
    assert [item["metadata"]["name"] for item in one["items"]] == [names[3]]
    assert (await api.page("default", fields="metadata.name=none-such"))["items"] == []


async def test_a_watch_tells_what_happens_after_a_version(api, spot):
    fields = f"metadata.name={spot.lease}"
    start = (await api.page("default", fields=fields))["metadata"]["resourceVersion"]
    first = await api.create(spot, lease(spot))
    second = await api.replace(spot, {**first, "spec": {"holderIdentity": "b"}})
    await api.delete("default", spot.lease, **_conditions(second))
    events = []
    with anyio.fail_after(10):
        async with api.watch("default", fields=fields, version=start, seconds=30) as told:
            async for kind, body in told:
                events.append((kind, body["spec"].get("holderIdentity")))
                if len(events) == 3:
                    break
            await told.aclose()
    assert events == [("ADDED", None), ("MODIFIED", "b"), ("DELETED", "b")]


async def test_a_watch_ends_when_it_was_told_to(api, spot):
    fields = f"metadata.name={spot.lease}"
    start = (await api.page("default", fields=fields))["metadata"]["resourceVersion"]
    with anyio.fail_after(10):
        async with api.watch("default", fields=fields, version=start, seconds=1) as told:
            assert [kind async for kind, _ in told if kind != "BOOKMARK"] == []


async def test_a_watch_sees_only_what_its_labels_select(api, spot):
    mine, other = (Place("default", f"{spot.lease}-{end}", "lock", "") for end in ("mine", "other"))
    start = (await api.page("default", limit=1))["metadata"]["resourceVersion"]
    await api.create(other, lease(other))
    await api.create(mine, lease(mine, labels={"test": spot.lease}))
    with anyio.fail_after(10):
        async with api.watch("default", labels=f"test={spot.lease}", version=start, seconds=30) as told:
            _, body = await anext(told)
            assert body["metadata"]["name"] == mine.lease
            await told.aclose()


async def test_replies_carry_the_time(api, spot):
    assert api.clock.known is False
    await api.get(spot)
    assert api.clock.known is True
