"""Any name of ours, as the name of a Lease: valid, readable, and never another's."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grelmicro.coordination._names import check_name
from grelmicro.providers._kubernetes.names import place_of
from grelmicro.testing.conformance._names import hard_names

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)
LONG = 30.0


def lease_of(name, kind="lock", prefix=""):
    return place_of("default", kind, prefix, name).lease


@settings(max_examples=300, deadline=None)
@given(
    NAMES,
    NAMES,
    st.sampled_from(["lock", "election", "schedule"]),
    st.text(max_size=60).filter(lambda p: "\0" not in p and p.isprintable()),
)
def test_every_name_has_a_valid_lease_of_its_own(name, other, kind, prefix):
    lease = lease_of(check_name(name), kind, prefix)
    assert SUBDOMAIN.fullmatch(lease)
    assert len(lease) <= 253
    assert lease == lease_of(name, kind, prefix)
    if name != other:
        assert lease != lease_of(other, kind, prefix)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("order:17", "lock-order-17-"),
        ("A/B:c", "lock-a-b-c-"),
        ("a.b", "lock-a-b-"),
        ("🔒", "lock-"),
        ("--", "lock-"),
        ("x" * 255, "lock-xxxx"),
    ],
)
def test_it_can_be_recognised(name, start):
    assert lease_of(name).startswith(start)
    assert lease_of(name, prefix="Shop 1").startswith(f"shop-1-{start}")


def test_lookalikes_kinds_and_prefixes_are_kept_apart():
    names = ["a.b", "a-b", "a_b", "A-B", "a" * 255, "a" * 254 + "b", "🔒", "🔓", *hard_names("p")]
    sides = [
        (kind, prefix) for kind in ("lock", "election", "schedule") for prefix in ("", "a", "lock", "a-")
    ]
    leases = [lease_of(name, kind, prefix) for name in names for kind, prefix in sides]
    assert len(set(leases)) == len(names) * len(sides)


async def test_names_that_a_lease_could_not_have_are_isolated(provider, unique):
    names = [f"{unique}{end}" for end in ("a.b", "a-b", "a_b", "A-B", "🔒")]
    names += [unique + "x" * (255 - len(unique)), unique + "x" * (254 - len(unique)) + "y"]
    locks, elections, schedules = provider.lock(), provider.leaderelection(), provider.schedule()
    for number, name in enumerate(names):
        assert await locks.acquire(name=name, token=f"t{number}", duration=LONG) is not None
        assert (
            await elections.acquire_or_renew(name=name, token=f"t{number}", duration=LONG)
        ).holder == f"t{number}"
        assert await schedules.claim(name, float(number)) is True
    for number, name in enumerate(names):
        assert await locks.owned(name=name, token=f"t{number}") is True
        assert (await elections.get(name=name)).holder == f"t{number}"
        assert await schedules.last_fired(name) == number


async def test_the_original_name_stands_in_an_annotation(kube, provider, unique):
    name = f"{unique}/Ä:🔒"
    for adapter in (provider.lock(), provider.leaderelection(), provider.schedule()):
        call = {
            "lock": lambda a: a.acquire(name=name, token="a", duration=LONG),
            "election": lambda a: a.acquire_or_renew(name=name, token="a", duration=LONG),
            "schedule": lambda a: a.claim(name, 1.0),
        }[adapter.kind]
        await call(adapter)
        metadata = kube.leases()[adapter.lease_name(name)]["metadata"]
        assert metadata["annotations"]["grelmicro/name"] == name
        assert metadata["labels"]["grelmicro/kind"] == adapter.kind
