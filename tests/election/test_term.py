"""A term by itself: its deadline holds without anybody's help."""

from __future__ import annotations

import anyio
import pytest

from grelmicro.coordination._election_term import Changes, Term
from tests.election.support import stand_still


def term():
    return Term(
        anyio.current_time, Changes(), asked_at=anyio.current_time(), renew_deadline=2, lease_duration=3
    )


async def test_work_is_cancelled_at_the_deadline_though_nobody_ends_the_term():
    t, start = term(), anyio.current_time()
    with t.body():
        await anyio.sleep_forever()
    assert anyio.current_time() - start == 2
    assert not t.alive
    assert not t.ended


async def test_a_confirmation_moves_the_deadline_of_running_work():
    t, start = term(), anyio.current_time()

    async def work():
        with t.body():
            await anyio.sleep_forever()
        assert anyio.current_time() - start == pytest.approx(3.5)

    async with anyio.create_task_group() as group:
        group.start_soon(work)
        await anyio.sleep(1.6)
        assert t.confirm(asked_at=start + 1.5, renew_deadline=2, lease_duration=3)
        assert t.lease_end == start + 4.5
        assert t.age == pytest.approx(0.1)


async def test_a_term_that_is_over_cannot_be_confirmed():
    t = term()
    stand_still(2)
    assert not t.confirm(asked_at=anyio.current_time(), renew_deadline=2, lease_duration=3)
    assert not t.alive
    t = term()
    t.end()
    assert not t.confirm(asked_at=anyio.current_time(), renew_deadline=2, lease_duration=3)
    assert not t.alive


async def test_drained_waits_for_all_work():
    t = term()
    ended = []

    async def work(clean_up):
        with t.body():
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(clean_up)
                ended.append(clean_up)

    async with anyio.create_task_group() as group:
        for clean_up in (1, 2, 3):
            group.start_soon(work, clean_up)
        await anyio.sleep(0.1)
        assert t.busy
        t.end()
        await t.drained()
        assert ended == [1, 2, 3]
        assert not t.busy


async def test_over_follows_the_deadline():
    t, start = term(), anyio.current_time()
    async with anyio.create_task_group() as group:

        async def watch():
            await t.over()
            assert anyio.current_time() - start == pytest.approx(3)

        group.start_soon(watch)
        await anyio.sleep(1)
        assert t.confirm(asked_at=start + 1, renew_deadline=2, lease_duration=3)
