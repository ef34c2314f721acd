"""Cron tasks: once per match over all replicas, the latest missed fire, and clocks that change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import anyio
import pytest

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock, TaskLock
from grelmicro.coordination.errors import CoordinationBackendError
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks
from tests.task.support import FaultyScheduleBackend, open_for

START = datetime(2026, 5, 1, 11, 59, 30, tzinfo=UTC)
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


@pytest.fixture
def backend():
    return FaultyScheduleBackend(provider=MemoryProvider())


class Fires:
    def __init__(self, clock, start=START):
        clock.set(start)
        self.clock = clock
        self.at = []

    async def __call__(self):
        self.at.append(datetime.fromtimestamp(self.clock(), UTC))


def replica(fires, backend, expression="* * * * *", **options):
    tasks = Tasks()
    tasks.cron(expression, name="job", backend=backend, **options)(fires)
    return tasks


def counts(tasks):
    return dict(tasks.tasks[0].counts.reasons)


async def together(*replicas, seconds):
    async with anyio.create_task_group() as group:
        for tasks in replicas:
            group.start_soon(open_for, tasks, seconds)


async def test_three_replicas_run_each_match_once(wall_clock, backend):
    fires = Fires(wall_clock)
    replicas = [replica(fires, backend) for _ in range(3)]
    await together(*replicas, seconds=10 * MINUTE)
    assert fires.at == [START + timedelta(seconds=30 + 60 * minute) for minute in range(10)]
    assert [claimed for _, _, claimed in backend.claims].count(True) == 10
    assert sum(tasks.tasks[0].counts.outcomes.get("success", 0) for tasks in replicas) == 10
    assert sum(counts(tasks).get("claimed", 0) for tasks in replicas) == 20


@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Zurich", "2026-03-28"),
        ("Europe/Zurich", "2026-10-24"),
        ("America/New_York", "2026-03-07"),
        ("America/New_York", "2026-10-31"),
        ("Australia/Lord_Howe", "2026-10-03"),
        ("Australia/Lord_Howe", "2026-04-04"),
        ("America/Santiago", "2026-09-05"),
        ("America/Santiago", "2026-04-04"),
    ],
)
async def test_a_night_in_which_clocks_change(wall_clock, backend, zone, day):
    start = datetime.fromisoformat(f"{day}T22:00").replace(tzinfo=ZoneInfo(zone))
    tasks, fires = Tasks(), {}
    for expression in ("30 2 * * *", "*/15 * * * *", "0 0 * * *", "30 23 * * *"):
        fires[expression] = Fires(wall_clock, start)
        tasks.cron(expression, timezone=zone, name=expression, backend=backend)(fires[expression])
    await open_for(tasks, 7 * HOUR + 1)
    quarters = fires["*/15 * * * *"].at
    assert {later - earlier for earlier, later in pairwise(quarters)} == {timedelta(minutes=15)}
    assert len(quarters) == 7 * 4
    for expression in ("30 2 * * *", "0 0 * * *", "30 23 * * *"):
        assert len(fires[expression].at) == 1
    assert not counts(tasks)


async def test_a_restart_inside_the_repeated_hour_runs_nothing_again(wall_clock, backend):
    fires = Fires(wall_clock, datetime(2026, 10, 25, 0, 0, tzinfo=UTC))
    for minutes in (40, 40, 40):  # 02:00 to 02:40, 02:40 to 02:20 again, 02:20 to 03:00
        await open_for(replica(fires, backend, "30 2 * * *", timezone="Europe/Zurich"), minutes * MINUTE)
    assert fires.at == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC)]


async def test_replicas_that_were_down_run_the_latest_missed_fire_once(wall_clock, backend, caplog):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend), MINUTE)
    assert len(fires.at) == 1
    await anyio.sleep(HOUR)
    replicas = [replica(fires, backend) for _ in range(3)]
    await together(*replicas, seconds=10)
    assert len(fires.at) == 2
    assert fires.at[1] == START + timedelta(hours=1, minutes=1)
    assert {counts(tasks)["superseded"] for tasks in replicas} == {59}
    assert "59 fires that were missed" in caplog.text


async def test_what_never_fired_has_missed_nothing(wall_clock, backend):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend, "0 * * * *"), 20)
    assert not fires.at
    assert not backend.claims


async def test_nothing_is_replayed_when_nothing_was_missed(wall_clock, backend):
    fires = Fires(wall_clock)
    for _ in range(5):
        await open_for(replica(fires, backend, "0 * * * *"), MINUTE)
    assert len(fires.at) == 1


async def test_a_backlog_longer_than_what_is_counted(wall_clock, backend, caplog):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend), MINUTE)
    await anyio.sleep(3 * DAY)
    tasks = replica(fires, backend)
    await open_for(tasks, 10)
    assert counts(tasks) == {"superseded": 1000}
    assert "at least 1000 fires that were missed" in caplog.text


async def test_a_fire_past_its_grace_is_skipped_and_said(wall_clock, backend, caplog):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend, "0 * * * *"), MINUTE)
    await anyio.sleep(HOUR + 5 * MINUTE)
    tasks = replica(fires, backend, "0 * * * *", misfire_grace_seconds=60)
    await open_for(tasks, 10)
    assert len(fires.at) == 1
    assert counts(tasks) == {"misfire": 1}
    assert tasks.tasks[0].last_fire.reason == "misfire"
    assert "misfire_grace_seconds" in caplog.text
    await open_for(replica(fires, backend, "0 * * * *", misfire_grace_seconds=600), 10)
    assert len(fires.at) == 2


async def test_a_loop_that_stalls_over_a_match_runs_it_late(wall_clock, backend):
    fires = Fires(wall_clock)
    tasks = replica(fires, backend)
    async with tasks:
        await anyio.sleep(29)
        wall_clock.step(5)  # five seconds in which the loop did not turn
        await anyio.sleep(30)
    assert len(fires.at) == 1
    assert tasks.tasks[0].counts.outcomes == {"success": 1}


async def test_a_clock_that_jumps_ahead_is_noticed_within_a_minute(wall_clock, backend):
    fires = Fires(wall_clock)
    tasks = replica(fires, backend, "0 * * * *")
    async with tasks:
        await anyio.sleep(MINUTE)
        wall_clock.step(5 * HOUR)
        await anyio.sleep(MINUTE)
    assert [moment.hour for moment in fires.at] == [12, 17]
    assert counts(tasks) == {"superseded": 4}


@pytest.mark.parametrize("back", [1, 90, HOUR, 10 * DAY])
async def test_a_clock_that_steps_back_fires_nothing_twice(wall_clock, backend, back):
    fires = Fires(wall_clock)
    tasks = replica(fires, backend)
    async with tasks:
        await anyio.sleep(2 * MINUTE)
        wall_clock.step(-back)
        await anyio.sleep(min(back, 3 * HOUR) + 10)
    due = [due for _, due, claimed in backend.claims if claimed]
    assert len(due) == len(set(due)) == len(fires.at)
    assert all(earlier < later for earlier, later in pairwise(due))


async def test_a_restart_after_the_clock_stepped_back_says_why_nothing_fires(wall_clock, backend, caplog):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend), 5 * MINUTE)
    wall_clock.step(-HOUR)
    before = len(fires.at)
    await open_for(replica(fires, backend), 30 * MINUTE)
    assert len(fires.at) == before
    assert "ahead of this clock" in caplog.text
    await open_for(replica(fires, backend), 40 * MINUTE)
    assert len(fires.at) > before


async def test_a_function_longer_than_the_period_never_overlaps_and_misses_nothing_it_need_not(
    wall_clock, backend
):
    fires, running = Fires(wall_clock), []

    async def job():
        assert not running
        running.append(1)
        await fires()
        await anyio.sleep(150)
        running.clear()

    tasks = Tasks()
    tasks.cron("* * * * *", name="job", backend=backend)(job)
    await open_for(tasks, 10 * MINUTE)
    assert len(fires.at) == 4
    assert counts(tasks)["superseded"] >= 3


async def test_other_replicas_runs_are_not_taken_for_missed_ones(wall_clock, backend):
    fires = Fires(wall_clock)
    slow, quick = Tasks(), replica(fires, backend)

    async def job():
        await fires()
        await anyio.sleep(150)

    slow.cron("* * * * *", name="job", backend=backend)(job)
    async with slow:
        await anyio.sleep(31)  # the slow one has the first fire
        await open_for(quick, 10 * MINUTE - 31)
    assert len(fires.at) == 10
    assert "superseded" not in counts(slow) | counts(quick)


async def test_a_backend_that_is_away_over_several_matches(wall_clock, backend, caplog):
    fires = Fires(wall_clock)
    tasks = replica(fires, backend)
    async with tasks:
        await anyio.sleep(MINUTE)
        backend.away = True
        await anyio.sleep(5 * MINUTE)
        assert len(fires.at) == 1
        assert counts(tasks)["backend_error"] >= 5
        assert tasks.tasks[0].last_fire.reason == "backend_error"
        backend.away = False
        await anyio.sleep(31)
        assert len(fires.at) >= 2
    assert counts(tasks)["superseded"] == 4
    assert "claimed" not in counts(tasks)
    assert "away" in caplog.text


async def test_a_backend_that_is_away_at_the_start_does_not_keep_it_from_starting(
    wall_clock, backend, caplog
):
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend, "0 * * * *"), MINUTE)
    await anyio.sleep(HOUR)
    backend.away = True
    tasks = replica(fires, backend, "0 * * * *")
    async with tasks:
        await anyio.sleep(20 * MINUTE)
        assert len(fires.at) == 1
        backend.away = False
        await anyio.sleep(MINUTE)
    assert len(fires.at) == 2
    assert "cannot tell which fires it missed" in caplog.text


async def test_a_backend_that_never_knew_the_name_and_was_away_at_the_start(wall_clock, backend):
    fires = Fires(wall_clock)
    backend.away = True
    tasks = replica(fires, backend)
    async with tasks:
        await anyio.sleep(5 * MINUTE)
        backend.away = False
        await anyio.sleep(31)
    assert len(fires.at) in (1, 2)
    assert counts(tasks)["backend_error"] >= 5


@pytest.mark.parametrize("reply", ["yes", 1, None])
async def test_an_unclear_claim_is_no_claim(wall_clock, backend, reply):
    async def claim(name, due):
        return reply

    backend.claim = claim
    fires = Fires(wall_clock)
    tasks = replica(fires, backend)
    await open_for(tasks, 35)
    assert not fires.at
    assert set(counts(tasks)) == {"backend_error"}


@pytest.mark.parametrize("reply", ["yesterday", True, float("nan")])
async def test_an_unclear_last_fire_is_a_backend_error(wall_clock, backend, reply, caplog):
    async def last_fired(name):
        return reply

    backend.last_fired = last_fired
    fires = Fires(wall_clock)
    await open_for(replica(fires, backend, "0 * * * *"), 20)
    assert "expected a finite number or None" in caplog.text


async def test_a_backend_that_never_answers_is_not_waited_for_for_ever(wall_clock, backend):
    async def claim(name, due):
        await anyio.sleep_forever()

    backend.claim = claim
    tasks = replica(Fires(wall_clock), backend)
    await open_for(tasks, 40)
    assert counts(tasks)["backend_error"] >= 1


async def test_a_replica_that_cannot_get_the_resource_leaves_the_fire_to_others(wall_clock, backend):
    fires, locks = Fires(wall_clock), MemoryProvider()
    refused = replica(fires, backend, sync=TaskLock("resource", backend=locks.lock()))
    other = replica(fires, backend)
    async with TaskLock("resource", backend=locks.lock()):
        await together(refused, other, seconds=35)
    assert len(fires.at) == 1
    assert counts(refused) == {"busy": 1}
    assert other.tasks[0].counts.outcomes == {"success": 1}


async def test_a_waiting_resource_lock_lets_one_replica_run_and_the_others_find_it_done(wall_clock, backend):
    fires, locks = Fires(wall_clock), MemoryProvider()
    replicas = [replica(fires, backend, sync=Lock("resource", backend=locks.lock())) for _ in range(3)]
    await together(*replicas, seconds=35)
    assert len(fires.at) == 1


async def test_the_backend_is_the_apps_unless_given(wall_clock):
    fires, tasks = Fires(wall_clock), Tasks()
    tasks.cron("* * * * *", name="ambient")(fires)
    tasks.cron("* * * * *", name="named", backend="other")(fires)
    provider, other = MemoryProvider(), MemoryProvider()
    micro = Grelmicro(uses=[Coordination(provider), Coordination(other, name="other"), tasks])
    async with micro:
        assert micro.task is tasks
        await anyio.sleep(35)
    assert len(fires.at) == 2
    due = (START + timedelta(seconds=30)).timestamp()
    assert await provider.schedule().last_fired("ambient") == due
    assert await other.schedule().last_fired("named") == due
    assert await provider.schedule().last_fired("named") is None


async def test_a_component_without_a_schedule_backend_is_said_at_the_start():
    tasks = Tasks()
    tasks.cron("* * * * *", name="job")(Tasks)
    with pytest.raises(CoordinationBackendError, match="schedule"):
        async with Grelmicro(uses=[Coordination(lock=MemoryProvider()), tasks]):
            pass


async def test_fifty_replicas_claim_one_fire_once(wall_clock, backend):
    fires = Fires(wall_clock)
    await together(*(replica(fires, backend) for _ in range(50)), seconds=35)
    assert len(fires.at) == 1


async def test_the_next_fire_time_is_known(wall_clock, backend):
    fires = Fires(wall_clock)
    tasks = replica(fires, backend, "0 * * * *", timezone="Europe/Zurich")
    async with tasks:
        assert tasks.tasks[0].next_fire_time == datetime(2026, 5, 1, 12, tzinfo=UTC)
        await anyio.sleep(35)
        assert tasks.tasks[0].next_fire_time == datetime(2026, 5, 1, 13, tzinfo=UTC)
        fire = tasks.tasks[0].last_fire
        assert (fire.started_at, fire.outcome) == (datetime(2026, 5, 1, 12, tzinfo=UTC), "success")
