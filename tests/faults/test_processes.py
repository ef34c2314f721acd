"""Several processes share a few locks while some of them are killed or stand still past their lease."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import anyio
import pytest

from grelmicro.testing.conformance._base import concurrently
from tests.faults.history import faults, grants_of, read
from tests.faults.processes import Nursery
from tests.lock.places import SERVERS, until

NAMES = 3
PROCESSES = 6
LEASE = 1.0
STANDSTILL = 1.3
"""Seconds for which a process is frozen: longer than its lease."""


class Storm:
    """Six processes on one server, for some seconds, with kills and freezes at random."""

    strikes = True

    def __init__(
        self, server: str, url: str, prefix: str, seconds: float, seed: int, directory: Path
    ) -> None:
        self.server, self.seconds, self.directory = server, seconds, directory
        self.chance = random.Random(f"{seed}-{server}")
        self.killed: set[str] = set()
        self.frozen: dict[str, float] = {}
        self.stood_still: set[str] = set()
        self.started = 0
        self.codes: dict[str, int] = {}
        directory.mkdir()
        self._arguments = (server, url, prefix, NAMES, LEASE, seed, directory)

    async def run(self) -> None:
        with Nursery("tests.faults.worker", *self._arguments) as nursery:
            for _ in range(PROCESSES):
                self._start(nursery)
            await until(self._all_began)
            end = anyio.current_time() + self.seconds
            while anyio.current_time() < end:
                await anyio.sleep(self.chance.uniform(0.1, 0.5))
                self._thaw(nursery)
                if self.strikes:
                    self._strike(nursery)
            for worker in list(self.frozen):
                await anyio.sleep_until(self.frozen[worker])
                self._thaw(nursery)
            self.codes = await anyio.to_thread.run_sync(nursery.finish)

    async def _all_began(self) -> bool:
        return len(self.notes()) == PROCESSES and all(self.notes().values())

    def _start(self, nursery: Nursery) -> None:
        nursery.spawn(f"worker-{self.started}")
        self.started += 1

    def _strike(self, nursery: Nursery) -> None:
        worker = self.chance.choice(list(nursery.workers))
        if self.chance.random() < 0.4:
            nursery.kill(worker)
            self.killed.add(worker)
            self.frozen.pop(worker, None)
            self._start(nursery)
        elif len(self.frozen) < PROCESSES - 2:
            worker = self._holder(nursery) or worker
            if worker in self.frozen:
                return
            nursery.signal(worker, signal.SIGSTOP)
            self.stood_still.add(worker)
            self.frozen[worker] = anyio.current_time() + STANDSTILL

    def _holder(self, nursery: Nursery) -> str | None:
        """Return a worker that holds a lock, or did a moment ago."""
        for worker in self.chance.sample(list(nursery.workers), len(nursery.workers)):
            path = self.directory / worker
            notes = read(path) if path.exists() else []
            if worker not in self.frozen and notes and notes[-1]["event"] in ("granted", "write", "extended"):
                return worker
        return None

    def _thaw(self, nursery: Nursery) -> None:
        for worker, end in list(self.frozen.items()):
            if end <= anyio.current_time():
                nursery.signal(worker, signal.SIGCONT)
                del self.frozen[worker]

    def judge(self) -> None:
        notes = self.notes()
        assert self.killed
        assert self.stood_still
        grants = [grant for worker, one in notes.items() for grant in grants_of(worker, one)]
        lost = [note for one in notes.values() for note in one if note["event"] == "lost"]
        print(f"{self.server}: {self.started} processes, {len(grants)} grants, {len(lost)} leases lost")  # noqa: T201
        assert faults(grants) == []
        assert len(grants) > 10 * self.seconds, "hardly anything happened"
        assert lost, "nobody stood still past a lease that it held"
        survivors = {worker for worker, one in notes.items() if one} - self.killed
        assert {worker: self.codes[worker] for worker in survivors} == dict.fromkeys(survivors, 0)
        for worker in survivors:
            assert notes[worker][-1]["event"] == "end"
            had_time = notes[worker][-1]["at"] - notes[worker][0]["at"] > 3 * LEASE
            got = [grant for grant in grants if grant.worker == worker]
            assert got or not had_time, f"{worker} never got its turn"

    def notes(self) -> dict[str, list[dict[str, object]]]:
        return {path.name: read(path) for path in self.directory.iterdir()}


@pytest.mark.variant("redis")
@pytest.mark.variant("postgres")
@pytest.mark.parametrize("seconds", [6, pytest.param(10, marks=pytest.mark.soak)])
async def test_six_processes_never_hold_a_lock_at_the_same_time(request, unique, tmp_path, seconds):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201
    storms = [
        Storm(server, request.getfixturevalue(f"{server}_url"), unique, seconds, seed, tmp_path / server)
        for server in SERVERS
    ]
    await concurrently([storm.run for storm in storms])
    for storm in storms:
        storm.judge()


async def test_the_judge_finds_out_locks_that_exclude_nobody(unique, tmp_path):
    storm = Storm("memory", "", unique, 0.5, 1, tmp_path / "memory")
    storm.strikes = False
    await storm.run()
    grants = [grant for worker, one in storm.notes().items() for grant in grants_of(worker, one)]
    assert any("both held it" in fault for fault in faults(grants))
