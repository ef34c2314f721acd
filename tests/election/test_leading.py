"""What a candidate does while all is well."""

from __future__ import annotations

import itertools

import anyio
import pytest

from grelmicro.coordination.errors import CoordinationError, LockNotOwnedError, WouldBlockError
from grelmicro.coordination.leaderelection import LeaderElectionConfig
from grelmicro.coordination.memory import MemoryLeaderElectionAdapter
from tests.election.support import ScriptedBackend, Work, candidate, running, settle, until

HOUR = 3600


async def test_one_of_many_candidates_leads():
    backend = MemoryLeaderElectionAdapter()
    elections = [candidate(backend) for _ in range(5)]
    async with running(*elections):
        await elections[0].wait_for_leader()
        for _ in range(100):
            await anyio.sleep(0.1)
            assert [election.is_leader() for election in elections] == [True, False, False, False, False]
        holder = (await backend.get(name="reports")).holder
        assert all(election.record.holder == holder for election in elections)


async def test_candidates_that_share_a_worker_name_do_not_lead_together():
    backend = MemoryLeaderElectionAdapter()
    first, second = candidate(backend, worker="host"), candidate(backend, worker="host")
    async with running(first, second):
        await first.wait_for_leader()
        await anyio.sleep(10)
        assert (first.is_leader(), second.is_leader()) == (True, False)
        assert first.record.holder.startswith("host:")


async def test_state_before_while_and_after():
    backend = ScriptedBackend()
    election = candidate(backend, metadata={"pod": "p-1"})

    def state():
        return (
            election.is_running(),
            election.is_leader(),
            election.last_confirmation_age(),
            election.is_leader_confirmed_within(HOUR),
        )

    assert state() == (False, False, None, False)
    assert election.record is None
    async with running(election):
        await election.wait_for_leader()
        assert state() == (True, True, 0, True)
        assert election.record.metadata == {"pod": "p-1"}
        assert election.record.lease_duration == 3
    assert state() == (False, False, None, False)
    assert await backend.get(name="reports") is None


async def test_confirmation_ages_until_the_next_one():
    backend = ScriptedBackend()
    election = candidate(backend, retry_jitter=0)
    async with running(election):
        await election.wait_for_leader()
        await anyio.sleep(0.3)
        assert election.last_confirmation_age() == pytest.approx(0.3)
        assert election.is_leader_confirmed_within(0.31)
        assert not election.is_leader_confirmed_within(0.29)
        assert not election.is_leader_confirmed_within(float("nan"))
        await anyio.sleep(0.2)
        assert election.last_confirmation_age() == pytest.approx(0.1)


async def test_renewals_keep_their_pace_for_an_hour():
    backend = ScriptedBackend()
    election = candidate(backend, lease_duration=15, renew_deadline=10, retry_interval=2, retry_jitter=0.1)
    async with running(election):
        await election.wait_for_leader()
        work = Work()
        with anyio.move_on_after(HOUR):
            await election.lead(work)
        assert len(work.spans) == 1
        assert work.spans[0][2] - work.spans[0][1] == pytest.approx(HOUR)
        assert HOUR / 2.2 - 1 <= len(backend.renewals) <= HOUR / 1.8 + 1
        assert election.record.transitions == 0


async def test_a_pause_never_reaches_past_the_deadline():
    backend = ScriptedBackend()
    election, work = candidate(backend, retry_interval=1.9, retry_jitter=0.9), Work()
    async with running(election):
        with anyio.move_on_after(600):
            await election.lead(work)
    assert len(work.spans) == 1
    assert work.spans[0][2] - work.spans[0][1] == pytest.approx(600)


async def test_wait_lose_leader():
    backend = ScriptedBackend()
    election = candidate(backend)
    await election.wait_lose_leader()
    async with running(election):
        await election.wait_for_leader()
        with anyio.move_on_after(30) as waited:
            await election.wait_lose_leader()
        assert waited.cancelled_caught
        await backend.memory.release(name="reports", token=election.record.holder)
        await backend.memory.acquire_or_renew(name="reports", token="other", duration=1)
        with anyio.fail_after(0.5):
            await election.wait_lose_leader()
        assert not election.is_leader()
        assert election.record.holder == "other"
        with anyio.fail_after(1.5):
            await election.wait_for_leader()


async def test_lead_returns_what_the_function_returns():
    election = candidate(MemoryLeaderElectionAdapter())

    async def add(a, b):
        await anyio.sleep(10)
        assert election.is_leader()
        return a + b

    async with running(election):
        assert await election.lead(add, 1, 2) == 3
        assert await election.lead(add, 3, 4, repeat=True) == 7


async def test_lead_waits_for_leadership():
    backend = MemoryLeaderElectionAdapter()
    await backend.acquire_or_renew(name="reports", token="other", duration=20)
    election = candidate(backend)
    started = []

    async def note():
        started.append(anyio.current_time() - start)

    async with running(election):
        start = anyio.current_time()
        await election.lead(note)
        assert 20 <= started[0] <= 20.5


@pytest.mark.parametrize("repeat", [False, True])
async def test_what_the_function_raises_leaves_lead_as_it_is(repeat):
    election = candidate(MemoryLeaderElectionAdapter())
    problem = KeyError("mine")

    async def fail():
        await anyio.sleep(1)
        raise problem

    async with running(election):
        with pytest.raises(KeyError) as raised:
            await election.lead(fail, repeat=repeat)
        assert raised.value is problem
        assert election.is_leader()


async def test_what_the_function_raises_while_it_is_stopped_leaves_lead_too():
    backend = ScriptedBackend()
    election = candidate(backend)

    async def fail():
        try:
            await anyio.sleep_forever()
        finally:
            raise KeyError("clean-up")

    async with running(election):
        await election.wait_for_leader()
        backend.on_renew = hang
        with pytest.raises(KeyError, match="clean-up"):
            await election.lead(fail, repeat=True)


async def hang(real):
    await anyio.sleep_forever()


async def test_lead_returns_none_when_leadership_is_lost():
    backend = ScriptedBackend()
    election, work = candidate(backend), Work()
    async with running(election):
        await election.wait_for_leader()
        backend.on_renew = hang
        assert await election.lead(work) is None
        assert not election.is_leader()
        assert len(work.spans) == 1


async def test_lead_with_repeat_runs_again_when_leadership_is_back():
    backend = ScriptedBackend()
    election, work = candidate(backend), Work()
    async with running(election) as group:
        group.start_soon(lambda: election.lead(work, repeat=True))
        for rounds in range(3):
            await election.wait_for_leader()
            await settle()
            assert work.running == ["a"]
            backend.on_renew = hang
            await election.wait_lose_leader()
            await settle()
            assert (work.running, len(work.spans)) == ([], rounds + 1)
            backend.on_renew = None
    assert not work.overlapped
    assert len(work.spans) == 3


async def test_a_body_that_swallows_its_cancellation_gets_no_second_term():
    backend = ScriptedBackend()
    election = candidate(backend)
    enough = anyio.Event()
    runs = 0

    async def stubborn():
        nonlocal runs
        runs += 1
        with anyio.CancelScope(shield=True):
            await enough.wait()
        return "done"

    results = []

    async def lead():
        results.append(await election.lead(stubborn))

    async with running(election) as group:
        group.start_soon(lead)
        await election.wait_for_leader()
        backend.on_renew = hang
        await election.wait_lose_leader()
        backend.on_renew = None
        await anyio.sleep(30)
        assert not election.is_leader()
        assert election.is_running()
        enough.set()
        with anyio.fail_after(1):
            await election.wait_for_leader()
        assert (results, runs) == ([None], 1)


async def test_lead_refuses_what_cannot_be_called():
    election = candidate(MemoryLeaderElectionAdapter())
    with pytest.raises(TypeError, match="coroutine function"):
        await election.lead(7)


async def test_a_cancelled_lead_leaves_leadership_alone():
    election, work = candidate(MemoryLeaderElectionAdapter()), Work()
    async with running(election):
        with anyio.move_on_after(1):
            await election.lead(work)
        assert len(work.spans) == 1
        assert election.is_leader()


async def test_guard_lets_the_leader_pass_and_refuses_others():
    backend = MemoryLeaderElectionAdapter()
    leader, follower = candidate(backend), candidate(backend)
    guard = follower.guard()
    with pytest.raises(WouldBlockError):
        async with leader.guard():
            pytest.fail("nobody leads")
    async with running(leader, follower):
        await leader.wait_for_leader()
        async with leader.guard():
            await anyio.sleep(10)
        for _ in range(2):
            with pytest.raises(WouldBlockError):
                async with guard:
                    pytest.fail("it does not lead")


async def test_one_guard_serves_many_tasks_and_nests():
    election = candidate(MemoryLeaderElectionAdapter())
    guard = election.guard()
    entered = []

    async def enter(seconds):
        async with guard, guard:
            await anyio.sleep(seconds)
            entered.append(seconds)

    async with running(election):
        await election.wait_for_leader()
        async with anyio.create_task_group() as group:
            for seconds in (3, 1, 2):
                group.start_soon(enter, seconds)
    assert entered == [1, 2, 3]


async def test_a_guarded_block_is_cut_short_when_leadership_is_lost():
    backend = ScriptedBackend()
    election = candidate(backend)
    async with running(election):
        for context in (election.guard(), election):
            await election.wait_for_leader()
            backend.on_renew = hang
            with pytest.raises(LockNotOwnedError):
                async with context:
                    await anyio.sleep_forever()
            assert not election.is_leader()
            backend.on_renew = None


async def test_the_body_of_a_block_keeps_its_own_error():
    election = candidate(MemoryLeaderElectionAdapter())
    async with running(election):
        with pytest.raises(KeyError):  # noqa: PT012 - what leaves the block is what is tested
            async with election as entered:
                assert entered is election
                raise KeyError


async def test_a_block_waits_for_leadership():
    backend = MemoryLeaderElectionAdapter()
    await backend.acquire_or_renew(name="reports", token="other", duration=20)
    election = candidate(backend)
    async with running(election):
        start = anyio.current_time()
        async with election:
            assert 20 <= anyio.current_time() - start <= 20.5
            assert election.is_leader()


async def test_a_candidate_runs_once():
    election = candidate(MemoryLeaderElectionAdapter())
    async with running(election):
        with pytest.raises(CoordinationError, match="running already"):
            await election()
        await election.wait_for_leader()


async def test_a_candidate_can_be_run_again():
    backend = ScriptedBackend()
    election = candidate(backend)
    for _ in range(3):
        async with running(election):
            await election.wait_for_leader()
        assert await backend.get(name="reports") is None
    assert len(backend.releases) == 3


async def test_a_new_configuration_counts_from_the_next_request():
    backend = ScriptedBackend()
    election = candidate(backend, retry_jitter=0)
    async with running(election):
        await election.wait_for_leader()
        await election.reconfigure(
            LeaderElectionConfig(
                lease_duration=40, renew_deadline=30, retry_interval=7, retry_jitter=0, backend_timeout=1
            )
        )
        await anyio.sleep(20)
        times = [at for at, _ in backend.renewals]
        assert [b - a for a, b in itertools.pairwise(times)] == pytest.approx([0.4, 7, 7])
        assert election.record.lease_duration == 40


async def test_a_shorter_lease_shortens_leading_even_when_its_reply_is_lost():
    backend = ScriptedBackend()
    election = candidate(backend, lease_duration=40, renew_deadline=30, retry_interval=5, retry_jitter=0)

    async def lose_reply(real):
        await real()
        await anyio.sleep_forever()

    async with running(election):
        await election.wait_for_leader()
        start = anyio.current_time()
        await election.reconfigure(
            LeaderElectionConfig(lease_duration=3, renew_deadline=2, retry_interval=0.4, backend_timeout=1)
        )
        await until(lambda: len(backend.renewals) == 1 and anyio.current_time() > start + 4)
        backend.on_renew = lose_reply
        await election.wait_lose_leader()
        # The server got the shorter lease at second 5 and may end it at 8.
        assert anyio.current_time() - start == pytest.approx(7, abs=0.01)


async def test_leadership_can_be_read_in_a_thread():
    election = candidate(MemoryLeaderElectionAdapter())
    async with running(election):
        await election.wait_for_leader()
        seen = await anyio.to_thread.run_sync(
            lambda: (election.is_leader(), election.last_confirmation_age())
        )
        assert seen == (True, pytest.approx(0, abs=0.1))
