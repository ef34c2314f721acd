"""Stopping: the flag falls, the work ends, the lease is released; whatever cancels, in whatever order."""

from __future__ import annotations

import asyncio
import logging

import anyio
import pytest

from tests.election.support import TIMES, ScriptedBackend, Work, candidate, on_asyncio, running, settle, until

LEASE = TIMES["lease_duration"]
RETRY = TIMES["retry_interval"] * 1.1


async def hang(real):
    await anyio.sleep_forever()


async def hang_whatever_happens(real):
    with anyio.CancelScope(shield=True):
        await anyio.sleep(100)


async def free(backend):
    return await backend.get(name="reports") is None


class Log:
    """Notes in which order things happen at the end."""

    def __init__(self, backend, clean_up=0.5):
        self.events = []
        self._clean_up = clean_up
        backend.on_release = self._release

    async def body(self, election):
        try:
            await anyio.sleep_forever()
        finally:
            self.events.append(f"leader: {election.is_leader()}")
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self._clean_up)
            self.events.append("work ended")

    async def _release(self, real):
        self.events.append("released")
        return await real()


IN_ORDER = ["leader: False", "work ended", "released"]


async def test_a_stop_ends_the_work_and_then_releases():
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend)
    stop = anyio.CancelScope()

    async def run(*, task_status):
        with stop:
            await election(task_status=task_status)

    async with anyio.create_task_group() as group:
        await group.start(run)
        group.start_soon(election.lead, log.body, election)
        await election.wait_for_leader()
        await settle()
        stop.cancel()
        await until(lambda: not election.is_running())
        assert log.events == IN_ORDER
        assert await free(backend)


@pytest.mark.parametrize("lead_first", [True, False])
async def test_work_and_candidate_cancelled_together(lead_first):
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend)
    async with anyio.create_task_group() as group:
        if lead_first:
            group.start_soon(election.lead, log.body, election)
            await settle()
        await group.start(election)
        if not lead_first:
            group.start_soon(election.lead, log.body, election)
        await election.wait_for_leader()
        await settle()
        group.cancel_scope.cancel()
    # The work may be told before the flag falls: it has been cancelled by the group itself.
    assert log.events[1:] == IN_ORDER[1:]
    assert await free(backend)


async def test_work_in_another_group_is_waited_for():
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend, clean_up=1.5)
    async with anyio.create_task_group() as outer:
        async with running(election):
            outer.start_soon(election.lead, log.body, election)
            await election.wait_for_leader()
            await settle()
        assert log.events == IN_ORDER
        assert await free(backend)


@pytest.mark.parametrize("blocking", [False, True])
async def test_guarded_blocks_are_waited_for_too(blocking):
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend)

    async def guarded():
        async with election if blocking else election.guard():
            await log.body(election)

    async with anyio.create_task_group() as group:
        await group.start(election)
        await election.wait_for_leader()
        group.start_soon(guarded)
        await settle()
        group.cancel_scope.cancel()
    assert log.events[1:] == IN_ORDER[1:]


async def test_a_successor_follows_a_graceful_stop_within_a_retry():
    backend = ScriptedBackend()
    first, second = candidate(backend), candidate(backend)
    for _ in range(20):
        async with anyio.create_task_group() as group:
            async with running(first):
                await first.wait_for_leader()
                await group.start(second)
                await anyio.sleep(1)
            start = anyio.current_time()
            await second.wait_for_leader()
            assert anyio.current_time() - start <= RETRY + 0.001
            group.cancel_scope.cancel()


async def test_a_follower_stops_without_a_release():
    backend = ScriptedBackend()
    await backend.memory.acquire_or_renew(name="reports", token="other", duration=60)
    async with running(candidate(backend)):
        await anyio.sleep(5)
        start = anyio.current_time()
    assert anyio.current_time() == start
    assert backend.releases == []
    assert not await free(backend)


async def test_a_stop_while_the_first_request_is_under_way_leaves_nothing_held():
    backend = ScriptedBackend()

    async def slowly(real):
        await anyio.sleep(0.2)
        record = await real()
        await anyio.sleep(0.2)
        return record

    for moment in (0.05, 0.1, 0.2, 0.3, 0.4, 0.45):
        backend.on_renew = slowly
        async with running(candidate(backend)):
            await anyio.sleep(moment)
        assert await free(backend)
        await anyio.sleep(1)
        assert await free(backend)


async def test_a_release_does_not_overtake_the_request_that_it_undoes():
    """The server gets the request whatever happens to the client, which learns of it only if it stays."""
    backend = ScriptedBackend()

    async with anyio.create_task_group() as server:

        async def on_its_way(real):
            arrived = anyio.Event()

            async def arrive():
                await anyio.sleep(0.2)
                await real()
                arrived.set()

            server.start_soon(arrive)
            await arrived.wait()
            return await backend.get(name="reports")

        backend.on_renew = on_its_way
        async with running(candidate(backend)):
            await anyio.sleep(0.1)
    assert await free(backend)


@pytest.mark.parametrize("turns", range(12))
async def test_cancelled_at_any_turn_it_leaves_nothing_held(turns):
    backend = ScriptedBackend()
    election, work = candidate(backend), Work()
    async with anyio.create_task_group() as group:
        group.start_soon(election)
        group.start_soon(lambda: election.lead(work, repeat=True))
        await settle(turns)
        group.cancel_scope.cancel()
    await settle()
    assert await free(backend)
    assert work.running == []


@pytest.mark.parametrize("fault", [hang, hang_whatever_happens])
async def test_a_release_that_hangs_is_bounded(caplog, fault):
    backend = ScriptedBackend()
    backend.on_release = fault
    election = candidate(backend)
    async with running(election):
        await election.wait_for_leader()
        start = anyio.current_time()
    assert anyio.current_time() - start <= (1 if fault is hang else LEASE)
    assert not election.is_running()
    if fault is hang:
        assert "could not be released" in caplog.text


async def test_a_stop_during_a_hung_renewal_still_releases():
    backend = ScriptedBackend()
    election = candidate(backend)
    async with running(election):
        await election.wait_for_leader()
        backend.on_renew = hang_whatever_happens
        await until(lambda: len(backend.renewals) == 2)
        start = anyio.current_time()
    assert anyio.current_time() - start <= 1
    assert await free(backend)


async def test_a_release_that_fails_is_logged_and_ends_nothing(caplog):
    backend = ScriptedBackend()

    async def fail(real):
        raise OSError("server gone")

    backend.on_release = fail
    async with running(candidate(backend)) as _:
        await until(lambda: len(backend.renewals) == 2)
    assert "could not be released" in caplog.text
    assert backend.renewals[0][1] not in caplog.text


async def test_clean_up_that_outlasts_the_lease_is_reported_and_released_after(caplog):
    caplog.set_level(logging.ERROR)
    backend = ScriptedBackend()
    election, work = candidate(backend), Work(clean_up=10)
    async with anyio.create_task_group() as outer:
        async with running(election):
            outer.start_soon(election.lead, work)
            await election.wait_for_leader()
            await settle()
            start = anyio.current_time()
        assert anyio.current_time() - start <= LEASE
        assert "its lease has ended" in caplog.text
        assert work.running == ["a"]
        async with running(election):
            await anyio.sleep(5)
            assert not election.is_leader()
            assert work.running == ["a"]
            with anyio.fail_after(5):
                await election.wait_for_leader()
    assert not work.overlapped


async def test_work_that_stops_its_own_candidate():
    backend = ScriptedBackend()
    election = candidate(backend)
    stop = anyio.CancelScope()
    ended = anyio.Event()

    async def run(*, task_status):
        with stop:
            await election(task_status=task_status)
        ended.set()

    async def body():
        stop.cancel()
        await ended.wait()
        return "not reached"

    async with anyio.create_task_group() as group:
        await group.start(run)
        with anyio.fail_after(1):
            assert await election.lead(body) is None
            await ended.wait()
        assert await free(backend)


@on_asyncio
async def test_work_that_cancels_and_awaits_its_candidates_task():
    backend = ScriptedBackend()
    election = candidate(backend)
    task = asyncio.create_task(election())

    async def body():
        task.cancel()
        await task

    with anyio.fail_after(1):
        assert await election.lead(body) is None
        with pytest.raises(asyncio.CancelledError):
            await task
    await settle()
    assert await free(backend)


@on_asyncio
@pytest.mark.parametrize("cancels", [1, 2, 5])
async def test_native_cancellation_releases(cancels):
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend)
    task = asyncio.create_task(election())
    work = asyncio.create_task(election.lead(log.body, election))
    await election.wait_for_leader()
    await settle()
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not election.is_leader()
    assert await work is None
    await until(lambda: log.events == IN_ORDER)
    assert await free(backend)


@on_asyncio
async def test_a_native_timeout_releases():
    backend = ScriptedBackend()
    election, log = candidate(backend), Log(backend)
    work = asyncio.create_task(election.lead(log.body, election))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await election()
    assert await work is None
    assert log.events == IN_ORDER
    assert await free(backend)


@on_asyncio
async def test_the_program_may_end_while_it_leads():
    """`asyncio.run` cancels what is left; a bare task of a candidate still hands over."""
    backend = ScriptedBackend()
    log = Log(backend, clean_up=0)

    async def main():
        election = candidate(backend)
        tasks = [asyncio.create_task(election()), asyncio.create_task(election.lead(log.body, election))]
        await election.wait_for_leader()
        await asyncio.sleep(0.01)
        return tasks

    await asyncio.to_thread(asyncio.run, main())
    assert log.events[1:] == IN_ORDER[1:]
    assert len(backend.releases) == 1


async def test_stopping_twice_in_a_row_restarts_cleanly():
    backend = ScriptedBackend()
    election, work = candidate(backend), Work(clean_up=0.1)
    for _ in range(5):
        async with running(election) as group:
            group.start_soon(lambda: election.lead(work, repeat=True))
            await election.wait_for_leader()
            await settle()
            assert work.running == ["a"]
        assert await free(backend)
    assert len(work.spans) == 5
    assert not work.overlapped
