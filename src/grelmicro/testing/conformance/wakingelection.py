"""The conformance suite of `WakingElectionBackend`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from grelmicro.coordination.abc import WakingElectionBackend
from grelmicro.testing.conformance._base import LONG, BackendSuite
from grelmicro.testing.conformance._ears import Ear, can_hear
from grelmicro.testing.conformance._names import hard_names

if TYPE_CHECKING:
    from collections.abc import Sequence

Backends = tuple[WakingElectionBackend, ...]


async def _lead(backend: WakingElectionBackend, name: str, token: str) -> None:
    record = await backend.acquire_or_renew(name=name, token=token, duration=LONG)
    assert record.holder == token


async def _listening(backends: Sequence[WakingElectionBackend], name: str) -> list[Ear]:
    ears = [Ear(backend.on_vacancy, name) for backend in backends]
    for backend in backends:
        await can_hear(backend)
    for ear in ears:
        ear.forget()
    return ears


class WakingElectionBackendSuite(BackendSuite):
    """Everything that a `WakingElectionBackend` promises beyond a `LeaderElectionBackend`.

    Its fixture `processes` yields three open backends over the same data, each as a process of its own has
    it.
    """

    @pytest.fixture
    def backend(self, processes: Backends) -> WakingElectionBackend:
        """Return the first process's backend."""
        return processes[0]

    async def test_it_has_the_protocol(self, processes: Backends) -> None:
        assert len(set(map(id, processes))) == 3
        for backend in processes:
            assert isinstance(backend, WakingElectionBackend)
            assert type(backend.wakes) is bool

    async def test_a_leader_that_lets_go_wakes_all_candidates(self, processes: Backends, unique: str) -> None:
        leader, *candidates = processes
        for token in ("a", "b", "c"):
            await _lead(leader, unique, token)
            ears = await _listening([*candidates, candidates[0]], unique)
            assert await leader.release(name=unique, token=token) is True
            for ear in ears:
                await ear.woken()
                ear.stop()

    async def test_nothing_else_wakes_them(self, processes: Backends, unique: str) -> None:
        leader, *candidates = processes
        ears = await _listening(candidates, unique)
        await _lead(leader, unique, "a")
        await _lead(leader, unique, "a")
        assert await leader.release(name=unique, token="b") is False
        record = await candidates[0].acquire_or_renew(name=unique, token="b", duration=LONG)
        assert record.holder == "a"
        await self._vacant(processes, f"{unique}-another")
        assert [ear.count for ear in ears] == [0, 0]

    async def test_who_no_longer_listens_is_not_woken(self, processes: Backends, unique: str) -> None:
        leader, candidate, _ = processes
        await _lead(leader, unique, "a")
        gone, there = await _listening([candidate, candidate], unique)
        gone.stop()
        gone.stop()
        await leader.release(name=unique, token="a")
        await there.woken()
        assert gone.count == 0

    async def test_names_are_kept_apart(self, processes: Backends, unique: str) -> None:
        leader, candidate, _ = processes
        names = hard_names(unique)
        ears = dict(zip(names, [Ear(candidate.on_vacancy, name) for name in names], strict=True))
        await can_hear(candidate)
        for ear in ears.values():
            ear.forget()
        for name, ear in ears.items():
            await _lead(leader, name, "a")
            await leader.release(name=name, token="a")
            await ear.woken()
            assert not any(other.count for other in ears.values()), name

    async def _vacant(self, processes: Backends, name: str) -> None:
        """Let word of another election pass, which comes after whatever came before."""
        ears = await _listening(processes, name)
        await _lead(processes[0], name, "a")
        await processes[0].release(name=name, token="a")
        for ear in ears:
            await ear.woken()
            ear.stop()
