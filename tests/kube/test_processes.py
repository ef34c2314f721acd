"""Processes that are killed, or stand still past their lease, on a real API server."""

from __future__ import annotations

import random
from functools import partial

import anyio
import pytest

from grelmicro.coordination import Lock
from grelmicro.providers.kubernetes import KubernetesProvider
from grelmicro.testing.conformance._base import concurrently
from tests.faults import test_processes as storms
from tests.faults.processes import Nursery

LEASE = 1.0
SLACK = 1.0
"""Seconds by which a busy machine may be late."""


class Storm(storms.Storm):
    """A worker may be killed before it has written down anything."""

    def _start(self, nursery):
        (self.directory / f"worker-{self.started}").touch()
        super()._start(nursery)


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.soak)])
async def test_six_processes_never_hold_a_lock_at_the_same_time(
    kube_server, unique, tmp_path, seconds, monkeypatch
):
    def nursery(_module, _server, *arguments):
        return Nursery("tests.kube.worker", "storm", *arguments)

    monkeypatch.setattr(storms, "Nursery", nursery)
    seed = random.randrange(2**32)
    storm = Storm("kubernetes", str(kube_server.kubeconfig), unique, seconds, seed, tmp_path / "notes")
    await storm.run()
    storm.judge()


@pytest.mark.parametrize("runs", [10, pytest.param(200, marks=pytest.mark.soak)])
async def test_a_holder_killed_at_a_random_point_leaves_the_lock_free_within_its_lease(
    kube_server, unique, runs
):
    chance = random.Random(unique)
    names = [f"{unique}-{number}" for number in range(runs)]
    async with KubernetesProvider(kubeconfig=kube_server.kubeconfig) as provider:
        locks = provider.lock()

        async def kill_and_take(nursery, name):
            await anyio.sleep(chance.uniform(0, 0.5))
            nursery.kill(name)
            start = anyio.current_time()
            lock = Lock(name, backend=locks, retry_interval=0.05, env_load=False)
            await lock.acquire(timeout=LEASE + SLACK + 1)
            assert anyio.current_time() - start < LEASE + SLACK

        with Nursery("tests.kube.worker", "restless", kube_server.kubeconfig, LEASE) as nursery:
            for batch in range(0, runs, 10):
                some = names[batch : batch + 10]
                for name in some:
                    nursery.spawn(name)
                with anyio.fail_after(20):
                    for name in some:
                        while not await locks.locked(name=name):  # noqa: ASYNC110 - nothing tells
                            await anyio.sleep(0.002)
                await concurrently([partial(kill_and_take, nursery, name) for name in some])
        leases = kube_server.leases()
        for name in names:
            assert leases[locks.lease_name(name)]["spec"]["leaseDurationSeconds"] >= 1
