"""Settings of an election: relations that cannot work are refused wherever they come from."""

from __future__ import annotations

import re

import pytest
from pydantic import ValidationError

from grelmicro.coordination.leaderelection import LeaderElection, LeaderElectionConfig
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter, MemoryLockAdapter
from grelmicro.errors import OutOfContextError, SettingsValidationError
from tests.election.support import ScriptedBackend, candidate, running

BAD = {
    "renew_deadline must be shorter than lease_duration": {"lease_duration": 51, "renew_deadline": 51},
    "retry_interval must be shorter than renew_deadline": {"renew_deadline": 7, "retry_interval": 7},
    "retry_jitter": {"retry_jitter": 1},
}


def test_defaults():
    config = LeaderElection("reports", env_load=False).config
    assert config == LeaderElectionConfig(
        lease_duration=15,
        renew_deadline=10,
        retry_interval=2,
        retry_jitter=0.1,
        backend_timeout=5,
        error_interval=30,
    )


@pytest.mark.parametrize(("rule", "settings"), BAD.items())
def test_relations_are_checked_at_construction(rule, settings):
    with pytest.raises(SettingsValidationError, match=rule) as raised:
        LeaderElection("reports", env_load=False, **settings)
    assert not re.search("51|7", str(raised.value))
    with pytest.raises(ValidationError, match=rule):
        LeaderElectionConfig(**settings)


@pytest.mark.parametrize(("rule", "settings"), BAD.items())
def test_relations_are_checked_in_the_environment(monkeypatch, rule, settings):
    for field, value in settings.items():
        monkeypatch.setenv(f"GREL_LEADERELECTION_REPORTS_{field.upper()}", str(value))
    with pytest.raises(SettingsValidationError, match=rule) as raised:
        LeaderElection("reports", env_load=True)
    assert not re.search("51|7", str(raised.value))


@pytest.mark.parametrize(("rule", "settings"), BAD.items())
async def test_relations_are_checked_when_reconfigured(rule, settings):
    election = LeaderElection("reports", env_load=False)
    before = election.config
    with pytest.raises(SettingsValidationError, match=rule):
        await election.reconfigure(before.model_copy(update=settings))
    assert election.config is before


@pytest.mark.parametrize(("rule", "settings"), BAD.items())
def test_relations_are_checked_in_a_ready_configuration(rule, settings):
    config = LeaderElectionConfig().model_copy(update=settings)
    with pytest.raises(SettingsValidationError, match=rule):
        LeaderElection.from_config("reports", config)


@pytest.mark.parametrize("jitter", [-0.1, 1, 1.5, float("nan")])
def test_jitter_outside_its_range_is_refused(jitter):
    with pytest.raises(SettingsValidationError, match="retry_jitter"):
        LeaderElection("reports", env_load=False, retry_jitter=jitter)


def test_a_backend_timeout_longer_than_the_deadline_is_accepted():
    assert candidate(ScriptedBackend(), backend_timeout=500).config.backend_timeout == 500


def test_settings_come_from_the_environment_of_the_name(monkeypatch):
    monkeypatch.setenv("GREL_LEADERELECTION_LEASE_DURATION", "33")
    monkeypatch.setenv("GREL_LEADERELECTION_REPORTS_LEASE_DURATION", "44")
    monkeypatch.setenv("OTHER_LEASE_DURATION", "55")
    assert LeaderElection("default", env_load=True).config.lease_duration == 33
    assert LeaderElection("reports", env_load=True).config.lease_duration == 44
    assert LeaderElection("reports", env_load=True, env_prefix="OTHER_").config.lease_duration == 55
    assert LeaderElection("reports", env_load=True, lease_duration=66).config.lease_duration == 66
    assert LeaderElection("reports", env_load=False).config.lease_duration == 15


async def test_the_worker_cannot_change():
    election = LeaderElection("reports", env_load=False, worker="w1")
    with pytest.raises(SettingsValidationError, match="worker"):
        await election.reconfigure(LeaderElectionConfig(worker="w2"))


@pytest.mark.parametrize("metadata", [{"pod": 1}, {1: "pod"}, {"pod": b"x"}, "pod", [("a", "b")]])
def test_metadata_maps_strings_to_strings(metadata):
    with pytest.raises(SettingsValidationError, match="metadata: must map strings to strings"):
        LeaderElection("reports", env_load=False, metadata=metadata)
    with pytest.raises(SettingsValidationError, match="metadata"):
        LeaderElection.from_config("reports", LeaderElectionConfig(), metadata=metadata)


async def test_metadata_is_a_copy():
    backend = ScriptedBackend()
    metadata = {"pod": "p-1"}
    election = LeaderElection.from_config(
        "reports", LeaderElectionConfig(), backend=backend, metadata=metadata
    )
    metadata["pod"] = "changed"
    async with running(election):
        await election.wait_for_leader()
        assert election.record is not None
        assert election.record.metadata == {"pod": "p-1"}
    backend.metadata[0]["pod"] = "changed"
    async with running(election):
        await election.wait_for_leader()
        assert election.record.metadata == {"pod": "p-1"}


async def test_repr_shows_neither_token_nor_metadata():
    election = candidate(MemoryLeaderElectionAdapter(), worker="w-17", metadata={"pod": "p-1"})
    async with running(election):
        await election.wait_for_leader()
        assert repr(election) == "<LeaderElection 'reports' running=True leader=True>"
    assert repr(election) == "<LeaderElection 'reports' running=False leader=False>"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, 7])
def test_a_name_that_no_backend_takes_is_refused(name):
    with pytest.raises(SettingsValidationError, match="name"):
        LeaderElection(name, env_load=False)


def test_a_backend_of_another_kind_is_refused():
    with pytest.raises(SettingsValidationError, match="acquire_or_renew"):
        LeaderElection("reports", env_load=False, backend=MemoryLockAdapter())


async def test_without_a_backend_it_does_not_start():
    election = LeaderElection("reports", env_load=False)
    with pytest.raises(OutOfContextError, match="no active app"):
        await election()
    assert not election.is_running()
