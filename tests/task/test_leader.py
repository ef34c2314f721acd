"""Tasks that only a leader runs."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from grelmicro.coordination import LeaderElection, TaskLock, WouldBlockError
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks
from tests.task.support import Runs, open_for

TIMINGS = {"lease_duration": 3, "renew_deadline": 2, "retry_interval": 0.4, "backend_timeout": 1}


class Cut(MemoryLeaderElectionAdapter):
    """A backend that can stop answering."""

    def __init__(self, provider):
        super().__init__(provider=provider)
        self.away = False

    async def acquire_or_renew(self, **arguments):
        if self.away:
            await anyio.sleep_forever()
        return await super().acquire_or_renew(**arguments)


def replica(provider, runs, who, *, duration=0.0, **options):
    backend = Cut(provider)
    election = LeaderElection("role", backend=backend, **TIMINGS)
    tasks = Tasks(tasks=[election])
    tasks.interval(seconds=1, name="job", leader=election, **options)(runs.body(who, duration))
    return tasks, election, backend


def job_of(tasks):
    return next(task for task in tasks.tasks if task.name == "job")


async def test_only_the_leader_runs_and_others_count_why_they_did_not():
    provider, runs = MemoryProvider(), Runs()
    replicas = [replica(provider, runs, who) for who in range(3)]
    async with anyio.create_task_group() as group:
        for tasks, _, _ in replicas:
            group.start_soon(open_for, tasks, 19.5)
    assert len({who for _, who in runs.starts}) == 1
    assert 18 <= len(runs.starts) <= 20
    skipped = [job_of(tasks).counts.reasons.get("not_leader", 0) for tasks, _, _ in replicas]
    assert sorted(skipped)[1:] == [20, 20]


async def test_the_function_is_cancelled_when_leadership_is_lost_and_the_next_leader_goes_on():
    provider, runs = MemoryProvider(), Runs()
    (first, election, backend), (second, other, _) = (
        replica(provider, runs, who, duration=100) for who in range(2)
    )
    async with first:
        await election.wait_for_leader()
        async with second:
            await anyio.sleep(2)
            assert [who for _, who in runs.starts] == [0]
            backend.away = True
            with anyio.fail_after(TIMINGS["lease_duration"] + 2 * TIMINGS["retry_interval"]):
                await other.wait_for_leader()
            assert job_of(first).counts.reasons["leadership_lost"] == 1
            await anyio.sleep(1.1)
            assert [who for _, who in runs.starts] == [0, 1]
            assert runs.most_at_once == 1
            second.tasks[1].abort()
            first.tasks[1].abort()


async def test_guards_are_entered_in_the_order_leader_lock_resource():
    order, provider = [], MemoryProvider()

    class Noting:
        def __init__(self, what):
            self.what = what

        async def __aenter__(self):
            order.append(self.what)

        async def __aexit__(self, *_):
            order.append(f"-{self.what}")

    class Leading:
        def guard(self):
            return Noting("leader")

    tasks, runs = Tasks(), Runs()
    tasks.interval(seconds=9, name="job", sync=Noting("sync"), lock=Noting("lock"), leader=Leading())(
        runs.body(0)
    )
    await open_for(tasks, 1)
    assert order == ["leader", "lock", "sync", "-sync", "-lock", "-leader"]
    await anyio.lowlevel.checkpoint()
    assert not await TaskLock("job", backend=provider.lock()).locked()


async def test_a_replica_that_does_not_lead_leaves_the_lock_alone():
    class Follower:
        def guard(self):
            return self

        async def __aenter__(self):
            msg = "somebody else leads"
            raise WouldBlockError(msg)

        async def __aexit__(self, *_):
            raise AssertionError

    provider, runs, tasks = MemoryProvider(), Runs(), Tasks()
    lock = TaskLock(backend=provider.lock())
    tasks.interval(seconds=10, name="job", lock=lock, leader=Follower())(runs.body(0))
    async with tasks:
        await anyio.sleep(1)
        assert not await TaskLock("job", backend=provider.lock()).locked()
    assert dict(tasks.tasks[0].counts.reasons) == {"not_leader": 1}


@pytest.mark.parametrize("swallow", [True, False])
async def test_an_election_that_swallows_the_cancellation_is_understood_too(swallow):
    class Leading:
        def guard(self):
            return self

        async def __aenter__(self):
            self.scope = anyio.move_on_after(2)
            self.scope.__enter__()

        async def __aexit__(self, *error):
            return self.scope.__exit__(*error)

    tasks, runs = Tasks(), Runs()
    tasks.interval(seconds=10, name="job", leader=Leading())(runs.body(0, 5 if swallow else 1))
    await open_for(tasks, 6)
    assert tasks.tasks[0].last_fire.reason == ("leadership_lost" if swallow else None)
