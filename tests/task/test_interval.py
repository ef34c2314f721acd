"""Interval tasks: at most one run per interval over all replicas, and none missed."""

from __future__ import annotations

import logging
import threading

import anyio
import pytest

from grelmicro.coordination import Lock, TaskLock, TaskLockConfig
from grelmicro.coordination._names import tasklock_key
from grelmicro.errors import SettingsValidationError
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import TaskDeclarationError, Tasks
from tests.task.support import FaultyLockBackend, Runs, open_for


@pytest.fixture
def provider():
    return MemoryProvider()


@pytest.fixture
def backend(provider):
    return FaultyLockBackend(provider=provider)


def replica(runs, provider, who=0, *, seconds=4.0, duration=0.0, lock_settings=None, backend=None):
    tasks = Tasks()
    lock = TaskLock(backend=backend or provider.lock(), **(lock_settings or {}))
    tasks.interval(seconds=seconds, name="job", lock=lock)(runs.body(who, duration))
    return tasks


async def side_by_side(replicas, phases, seconds):
    async with anyio.create_task_group() as group:
        for tasks, phase in zip(replicas, phases, strict=True):

            async def run(tasks=tasks, phase=phase):
                await open_for(tasks, seconds - phase, after=phase)

            group.start_soon(run)


@pytest.mark.parametrize("phases", [(0, 1.3, 2.7), (0, 0.05, 0.5), (0, 0, 0), (1.9, 0, 3.9), (0, 2, 3.999)])
@pytest.mark.parametrize("duration", [0, 0.1, 3])
async def test_three_replicas_run_once_per_interval_whatever_their_phases(provider, phases, duration):
    runs = Runs()
    await side_by_side([replica(runs, provider, who, duration=duration) for who in range(3)], phases, 20)
    assert 4 <= len(runs.starts) <= 6
    assert min(runs.gaps) >= 4


async def test_one_replica_alone_misses_no_tick(provider):
    runs = Runs()
    tasks = replica(runs, provider, seconds=2)
    await open_for(tasks, 40 * 2 - 0.5)
    assert len(runs.starts) == 40
    assert dict(tasks.tasks[0].counts.outcomes) == {"success": 40}


@pytest.mark.parametrize("latency", [0.05, 0.3])
async def test_one_replica_alone_misses_no_tick_on_a_slow_network(provider, backend, latency):
    async def slow(**_):
        await anyio.sleep(latency)

    backend.before["acquire"] = slow
    runs = Runs()
    tasks = replica(runs, provider, seconds=2, backend=backend)
    await open_for(tasks, 40 * (2 + 2 * latency + 0.01))
    assert set(tasks.tasks[0].counts.outcomes) == {"success"}
    assert 39 <= len(runs.starts) <= 41
    assert min(runs.gaps) >= 2


async def test_a_tick_whose_hold_lingers_is_asked_for_again_before_it_is_given_up(provider):
    class Rounding(FaultyLockBackend):
        async def acquire(self, *, name, token, duration):
            return await super().acquire(name=name, token=token, duration=duration * 1.01)

    runs = Runs()
    tasks = replica(runs, provider, seconds=100, backend=Rounding(provider=provider))
    await open_for(tasks, 1000)
    assert len(runs.starts) == 10
    assert max(runs.gaps) < 110


async def test_a_thousand_ticks_with_late_replicas(provider):
    runs = Runs()
    await side_by_side([replica(runs, provider, who, seconds=2) for who in range(3)], (0, 0.05, 0.5), 2000)
    assert 990 <= len(runs.starts) <= 1000
    assert min(runs.gaps) >= 2


@pytest.mark.parametrize(("min_hold", "shortest"), [(0, 0), (1.6, 1.6), (None, 2)])
async def test_the_minimum_hold_that_was_given_is_the_one_that_counts(provider, min_hold, shortest):
    runs, settings = Runs(), {"min_hold_duration": min_hold}
    replicas = [replica(runs, provider, who, seconds=2, lock_settings=settings) for who in range(2)]
    await side_by_side(replicas, (0, 0.5), 40)
    assert min(runs.gaps) >= shortest
    if min_hold == 0:
        assert len(runs.starts) == 40


async def test_a_function_that_raises_keeps_its_tick(provider, caplog):
    starts = []

    def failing(who):
        async def run():
            starts.append(anyio.current_time())
            raise KeyError(who)

        return run

    replicas = [Tasks(), Tasks()]
    for who, tasks in enumerate(replicas):
        tasks.interval(seconds=2, name="job", lock=TaskLock(backend=provider.lock()))(failing(who))
    await side_by_side(replicas, (0, 0.05), 20)
    assert len(starts) == 10
    assert replicas[0].tasks[0].last_fire.outcome == "error"
    assert replicas[0].tasks[0].counts.reasons["body_error"] == 10
    assert "KeyError" in caplog.text


async def test_a_function_longer_than_the_interval_is_followed_at_once_and_never_overlaps(provider):
    runs = Runs()
    await side_by_side(
        [replica(runs, provider, who, seconds=2, duration=5) for who in range(2)], (0, 0.5), 60
    )
    assert runs.most_at_once == 1
    assert {round(gap, 1) for gap in runs.gaps} == {5.0}


async def test_a_task_without_a_lock_runs_in_each_process_and_never_overlaps_itself():
    runs = Runs()
    tasks = Tasks()
    tasks.every(seconds=2, name="quick")(runs.body("quick"))
    tasks.every(seconds=2, name="slow")(runs.body("slow", 5))
    await open_for(tasks, 19.9)
    assert [who for _, who in runs.starts].count("quick") == 10
    assert [at for at, who in runs.starts if who == "slow"] == pytest.approx([0, 5, 10, 15])
    assert runs.most_at_once == 2


async def test_an_overlap_with_another_replica_is_reported_with_the_real_duration(provider, caplog):
    runs, settings = Runs(), {"lease_duration": 1, "min_hold_duration": 1}
    replicas = [
        replica(runs, provider, who, seconds=1, duration=3, lock_settings=settings) for who in range(2)
    ]
    await side_by_side(replicas, (0, 0.5), 5)
    assert runs.most_at_once == 2
    counts = replicas[0].tasks[0].counts
    assert counts.reasons["lease_lost"] >= 1
    assert replicas[0].tasks[0].last_fire.outcome == "error"
    assert "ran for 3.000 s and lost" in caplog.text


@pytest.mark.parametrize("where", ["function", "child task", "thread"])
async def test_refresh_prevents_the_overlap(provider, where):
    lock = TaskLock(backend=provider.lock(), lease_duration=1, min_hold_duration=1)
    runs = Runs()

    async def work():
        for _ in range(6):
            await anyio.sleep(0.5)
            await lock.refresh()

    async def job():
        await runs.body("refreshing")()
        if where == "function":
            await work()
        elif where == "child task":
            async with anyio.create_task_group() as group:
                group.start_soon(work)
        else:
            for _ in range(6):
                await anyio.sleep(0.5)
                await anyio.to_thread.run_sync(lock.from_thread.refresh)

    tasks, other = Tasks(), replica(runs, provider, "other", seconds=1)
    tasks.interval(seconds=1, name="job", lock=lock)(job)
    await side_by_side([tasks, other], (0, 0.5), 2.9)
    assert [who for _, who in runs.starts] == ["refreshing"]
    assert not {"lease_lost"} & set(tasks.tasks[0].counts.reasons)


async def test_a_backend_that_is_away_costs_ticks_but_not_the_loop(provider, backend, caplog):
    runs = Runs()
    tasks = replica(runs, provider, seconds=2, backend=backend)
    async with tasks:
        await anyio.sleep(5)
        before = len(runs.starts)
        backend.away = True
        await anyio.sleep(20)
        assert len(runs.starts) == before
        assert tasks.tasks[0].last_fire.outcome == "skipped"
        assert tasks.tasks[0].last_fire.reason == "backend_error"
        backend.away = False
        await anyio.sleep(2.1)
        assert len(runs.starts) == before + 1
    assert tasks.tasks[0].counts.reasons == {"backend_error": 10}
    assert "away" in caplog.text


async def test_a_backend_that_is_away_at_the_start_does_not_keep_the_tasks_from_starting(provider, backend):
    runs = Runs()
    tasks = replica(runs, provider, seconds=2, backend=backend)
    backend.away = True
    async with tasks:
        await anyio.sleep(5)
        assert not runs.starts
        backend.away = False
        await anyio.sleep(2)
    assert len(runs.starts) == 1
    assert tasks.tasks[0].counts.reasons == {"backend_error": 3}


async def test_a_backend_that_goes_away_while_the_function_runs_costs_no_tick_after_it_is_back(
    provider, backend
):
    runs = Runs()
    tasks = replica(runs, provider, seconds=2, duration=1, backend=backend)
    async with tasks:
        await anyio.sleep(0.5)
        backend.away = True
        await anyio.sleep(9.7)
        backend.away = False
        await anyio.sleep(2)
    assert len(runs.starts) == 2
    assert tasks.tasks[0].counts.reasons["release_error"] == 1
    assert tasks.tasks[0].counts.outcomes["success"] == 2


async def test_busy_ticks_are_counted_apart(provider):
    runs = Runs()
    replicas = [replica(runs, provider, who, seconds=2) for who in range(2)]
    await side_by_side(replicas, (0, 0.5), 20)
    assert dict(replicas[1].tasks[0].counts.reasons) == {"busy": 10}
    assert replicas[1].tasks[0].last_fire.duration == 0


async def test_the_tasks_own_copy_takes_name_and_timings_from_the_task(backend):
    tasks, lock = Tasks(), TaskLock(backend=backend)
    tasks.interval(seconds=120, name="slow", lock=lock)(ok)
    tasks.interval(seconds=8, name="quick", lock=lock)(ok)
    await open_for(tasks, 1)
    acquired = {arguments["name"]: [] for _, arguments in backend.asked}
    for _, arguments in backend.asked:
        acquired[arguments["name"]].append(arguments["duration"])
    assert acquired == {tasklock_key("slow"): [180, 120], tasklock_key("quick"): [60, 8]}
    assert (lock.name, lock.config) == ("default", TaskLockConfig())


async def test_what_was_given_by_keyword_environment_or_config_stays(backend, monkeypatch):
    monkeypatch.setenv("GREL_TASKLOCK_MINE_LEASE_DURATION", "200")
    locks = [
        TaskLock("mine", backend=backend),
        TaskLock("keyword", backend=backend, min_hold_duration=3),
        TaskLock.from_config(
            "config", TaskLockConfig(min_hold_duration=1, lease_duration=60), backend=backend
        ),
    ]
    tasks = Tasks()
    for lock in locks:
        tasks.interval(seconds=120, name=f"task of {lock.name}", lock=lock)(ok)
    await open_for(tasks, 1)
    assert {arguments["name"] for _, arguments in backend.asked} == {
        tasklock_key(lock.name) for lock in locks
    }
    assert sorted(backend.durations()) == [1, 3, 60, 120, 180, 200]


async def ok():
    pass


def test_a_lease_shorter_than_the_interval_needs_a_minimum_hold_of_its_own():
    with pytest.raises(TaskDeclarationError, match="lease_duration: must not be shorter than the interval"):
        Tasks().interval(seconds=120, name="job", lock=TaskLock(lease_duration=60))(ok)
    Tasks().interval(seconds=120, name="job", lock=TaskLock(lease_duration=60, min_hold_duration=60))(ok)
    Tasks().interval(seconds=120, name="job", lock=TaskLock())(ok)


async def test_a_swap_that_does_not_go_with_the_interval_is_refused(backend):
    tasks, lock = Tasks(), TaskLock("job", backend=backend)
    tasks.interval(seconds=120, name="job", lock=lock)(ok)
    with pytest.raises(SettingsValidationError, match="interval"):
        await lock.reconfigure(TaskLockConfig(lease_duration=100))
    await lock.reconfigure(TaskLockConfig(lease_duration=130))
    await open_for(tasks, 1)
    assert backend.durations() == [130, 120]


async def test_a_resource_lock_that_is_busy_leaves_the_tick_to_others(provider, caplog):
    runs, tasks = Runs(), Tasks()
    busy = TaskLock("resource", backend=provider.lock())
    tasks.interval(seconds=4, name="job", lock=TaskLock(backend=provider.lock()), sync=busy)(runs.body(0))
    async with TaskLock("resource", backend=provider.lock()):
        await side_by_side([tasks, replica(runs, provider, 1)], (0, 0.5), 3)
    assert [who for _, who in runs.starts] == [1]
    assert dict(tasks.tasks[0].counts.reasons) == {"busy": 1}


async def test_a_resource_lock_is_held_while_the_function_runs(provider):
    resource, tasks = Lock("resource", backend=provider.lock()), Tasks()
    seen = []

    async def job():
        seen.append(await resource.owned())

    tasks.interval(seconds=4, name="job", lock=TaskLock(backend=provider.lock()), sync=resource)(job)
    await open_for(tasks, 1)
    assert seen == [True]
    assert not await resource.locked()


async def test_a_sync_function_runs_in_a_thread(provider):
    threads, tasks = [], Tasks()

    def job():
        threads.append(threading.current_thread())

    tasks.interval(seconds=2, name="job", lock=TaskLock(backend=provider.lock()))(job)
    tasks.interval(seconds=2, name="lambda", lock=TaskLock(backend=provider.lock()))(
        lambda: ok_noting(threads)
    )
    async with tasks:
        while len(threads) < 4:  # noqa: ASYNC110 - threads take real time
            await anyio.sleep(0.1)
    assert threads[0] is not threading.current_thread()
    assert {task.last_fire.outcome for task in tasks.tasks} == {"success"}


async def ok_noting(threads):
    threads.append(threading.current_thread())


async def test_a_cancellation_that_escapes_the_function_does_not_end_the_loop(only_asyncio, caplog):
    import asyncio

    tasks, runs = Tasks(), Runs()

    async def job():
        await runs.body(0)()
        waiting = asyncio.ensure_future(anyio.sleep(60))
        waiting.cancel()
        await waiting

    tasks.interval(seconds=2, name="job")(job)
    await open_for(tasks, 5)
    assert len(runs.starts) == 3
    assert tasks.tasks[0].counts.reasons == {"body_error": 3}


async def test_the_state_of_a_task_can_be_looked_at(wall_clock):
    from datetime import UTC, datetime, timedelta

    start = datetime(2026, 5, 1, tzinfo=UTC)
    wall_clock.set(start)
    tasks, runs = Tasks(), Runs()
    tasks.interval(seconds=10, name="job")(runs.body(0, 2))
    task = tasks.tasks[0]
    assert (task.name, task.next_fire_time, task.last_fire) == ("job", None, None)
    async with tasks:
        await anyio.sleep(3)
        fire = task.last_fire
        assert (fire.started_at, fire.outcome, fire.reason) == (start, "success", None)
        assert fire.duration == pytest.approx(2)
        assert abs(task.next_fire_time - (start + timedelta(seconds=10))) < timedelta(milliseconds=1)


async def test_skips_say_why(provider, caplog):
    caplog.set_level(logging.DEBUG, logger="grelmicro.task")
    runs = Runs()
    await side_by_side([replica(runs, provider, who) for who in range(2)], (0, 1), 2)
    assert "Task 'job' was skipped (busy): task lock 'job' is held by somebody else" in caplog.text
