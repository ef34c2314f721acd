"""Starting and stopping: functions may end, elections hand over last, nothing is left running."""

from __future__ import annotations

import signal
import threading

import anyio
import pytest

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection, Lock, TaskLock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import TaskDeclarationError, Tasks, TaskStateError
from tests.task.support import FaultyScheduleBackend, open_for


class Body:
    """A function that notes how it ended, and whether something held meanwhile."""

    def __init__(self, duration, clean_up=0.0, holds=lambda: True):
        self.duration, self.clean_up, self.holds = duration, clean_up, holds
        self.starts, self.ends, self.held = 0, [], []

    async def __call__(self):
        self.starts += 1
        try:
            await anyio.sleep(self.duration)
            self.ends.append("finished")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(self.clean_up)
            self.ends.append("cancelled")
            raise
        finally:
            self.held.append(self.holds())


async def test_a_running_function_may_end_and_no_new_one_starts():
    body, tasks = Body(10), Tasks()
    tasks.interval(seconds=1, name="job")(body)
    start = anyio.current_time()
    await open_for(tasks, 5)
    assert anyio.current_time() - start == pytest.approx(10)
    assert (body.starts, body.ends) == (1, ["finished"])
    assert tasks.tasks[0].last_fire.outcome == "success"


async def test_a_function_that_does_not_end_is_cancelled_after_the_timeout(caplog):
    body, tasks = Body(1000, clean_up=2), Tasks(shutdown_timeout=3)
    tasks.interval(seconds=1, name="job")(body)
    start = anyio.current_time()
    await open_for(tasks, 5)
    assert anyio.current_time() - start == pytest.approx(10)
    assert body.ends == ["cancelled"]
    assert (tasks.tasks[0].last_fire.outcome, tasks.tasks[0].last_fire.reason) == ("error", "stopped")
    assert "Tasks that still ran 3 s after the stop are cancelled: job" in caplog.text


async def test_no_patience_cancels_at_once():
    body, tasks = Body(1000), Tasks(shutdown_timeout=0)
    tasks.interval(seconds=1, name="job")(body)
    start = anyio.current_time()
    await open_for(tasks, 5)
    assert anyio.current_time() - start == pytest.approx(5)
    assert body.ends == ["cancelled"]


async def test_a_function_in_a_thread_is_waited_for_past_the_timeout(caplog):
    release, ends, tasks = threading.Event(), [], Tasks(shutdown_timeout=0.5)

    def job():
        assert release.wait(10)
        ends.append("finished")

    tasks.interval(seconds=1, name="job")(job)
    async with anyio.create_task_group() as group:
        group.start_soon(open_for, tasks, 1)
        while "still ran" not in caplog.text:  # noqa: ASYNC110 - a log line sets no event
            await anyio.sleep(0.1)
        assert not ends
        release.set()
    assert ends == ["finished"]


async def test_waiting_for_a_lock_ends_when_the_tasks_stop():
    provider, body, tasks = MemoryProvider(), Body(1), Tasks()
    resource = Lock("resource", backend=provider.lock())
    tasks.interval(seconds=1, name="job", lock=TaskLock(backend=provider.lock()), sync=resource)(body)
    async with Lock("resource", backend=provider.lock()):
        start = anyio.current_time()
        await open_for(tasks, 5)
        assert anyio.current_time() - start == pytest.approx(5)
    assert body.starts == 0
    assert tasks.tasks[0].last_fire.reason == "stopped"
    assert not await TaskLock("job", backend=provider.lock()).locked()
    assert not await resource.locked()


async def test_a_cancelled_host_cancels_the_functions_and_leaves_no_lock_behind():
    provider, body = MemoryProvider(), Body(1000, clean_up=2)
    tasks = Tasks()
    tasks.interval(seconds=4, name="job", lock=TaskLock(backend=provider.lock()))(body)
    with anyio.move_on_after(5):
        async with tasks:
            await anyio.sleep_forever()
    assert body.ends == ["cancelled"]
    assert not await TaskLock("job", backend=provider.lock()).locked()
    await open_for(tasks, 1)
    assert body.starts == 2


async def test_an_error_of_the_host_leaves_as_it_is():
    tasks = Tasks()
    tasks.interval(seconds=4, name="job")(Body(1))
    with pytest.raises(KeyError):
        async with tasks:
            raise KeyError


async def test_the_minimum_hold_outlives_the_stop():
    provider, body = MemoryProvider(), Body(0)
    tasks = Tasks()
    tasks.interval(seconds=10, name="job", lock=TaskLock(backend=provider.lock()))(body)
    await open_for(tasks, 1)
    await open_for(tasks, 1)
    assert body.starts == 1
    await anyio.sleep(9)
    await open_for(tasks, 1)
    assert body.starts == 2


async def test_a_claimed_fire_runs_although_the_stop_came_meanwhile(wall_clock):
    from datetime import UTC, datetime

    wall_clock.set(datetime(2026, 5, 1, 11, 59, 59, tzinfo=UTC))
    backend, claiming = FaultyScheduleBackend(provider=MemoryProvider()), anyio.Event()
    claim = backend.claim

    async def slow_claim(name, due):
        claiming.set()
        await anyio.sleep(2)
        return await claim(name, due)

    backend.claim = slow_claim
    body, tasks = Body(1), Tasks()
    tasks.cron("* * * * *", name="job", backend=backend)(body)
    async with tasks:
        await claiming.wait()
    assert body.ends == ["finished"]


async def test_elections_hand_over_last():
    provider = MemoryProvider()
    election = LeaderElection("role", backend=provider.leaderelection())
    body = Body(10, holds=election.is_leader)
    tasks = Tasks(tasks=[election])
    tasks.interval(seconds=1, name="job", leader=election)(body)
    async with tasks:
        await election.wait_for_leader()
        await anyio.sleep(3)
    assert (body.ends, body.held) == (["finished"], [True])
    assert await provider.leaderelection().get(name="role") is None


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
async def test_elections_hand_over_after_the_clean_up_of_what_was_cancelled(how):
    provider = MemoryProvider()
    election = LeaderElection("role", backend=provider.leaderelection())
    body = Body(
        1000,
        clean_up=2,
        holds=lambda: provider.client.elections.get("role").expires_at > provider.client.now(),
    )
    tasks = Tasks(tasks=[election], shutdown_timeout=0.5)
    tasks.interval(seconds=1, name="job", leader=election)(body)
    with anyio.move_on_after(5 if how == "cancelled" else 100):
        async with tasks:
            await anyio.sleep(1000 if how == "cancelled" else 5)
    assert (body.ends, body.held) == (["cancelled"], [True])
    assert await provider.leaderelection().get(name="role") is None
    assert not election.is_running()


async def test_an_election_of_another_kind_stops_last_too():
    body, ended = Body(1000, clean_up=2), []

    class Election:
        name = "other"

        def guard(self):
            return anyio.CancelScope()

        async def __call__(self, *, task_status=anyio.TASK_STATUS_IGNORED):
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                ended.append(list(body.ends))

    tasks = Tasks(tasks=[Election()])
    tasks.interval(seconds=1, name="job")(body)
    with anyio.move_on_after(5):
        async with tasks:
            await anyio.sleep_forever()
    assert ended == [["cancelled"]]


async def test_elections_start_first():
    order = []

    class Noting:
        def __init__(self, name):
            self.name = name

        async def __call__(self, *, task_status=anyio.TASK_STATUS_IGNORED):
            order.append(self.name)
            task_status.started()

    class Election(Noting):
        def guard(self):
            return anyio.CancelScope()

    await open_for(Tasks(tasks=[Noting("worker"), Election("election")]), 1)
    assert order == ["election", "worker"]


class Custom:
    name = "custom"

    def __init__(self, error=None, started=True):
        self.error, self.started, self.cancelled = error, started, False

    async def __call__(self, *, task_status=anyio.TASK_STATUS_IGNORED):
        if not self.started:
            raise self.error
        task_status.started()
        if self.error:
            raise self.error
        try:
            await anyio.sleep_forever()
        finally:
            self.cancelled = True


async def test_a_task_of_another_kind_is_cancelled_first():
    custom, body, tasks = Custom(), Body(10), Tasks()
    body.holds = lambda: custom.cancelled
    tasks.add_task(custom)
    tasks.interval(seconds=1, name="job")(body)
    await open_for(tasks, 5)
    assert body.held == [True]


async def test_a_task_of_another_kind_that_fails_does_not_take_the_others_along(caplog):
    body, tasks = Body(0), Tasks(tasks=[Custom(KeyError("broken"))])
    tasks.interval(seconds=1, name="job")(body)
    await open_for(tasks, 4.5)
    assert body.starts == 5
    assert "Task 'custom' ended with an error" in caplog.text


async def test_what_fails_before_it_has_started_fails_the_opening():
    body, tasks = Body(0), Tasks()
    tasks.interval(seconds=1, name="job")(body)
    tasks.add_task(Custom(KeyError("broken"), started=False))
    with pytest.raises(KeyError, match="broken"):
        async with tasks:
            await anyio.sleep(1)
    tasks.interval(seconds=1, name="added after the failed start")(body)


async def test_tasks_start_when_told_to():
    body, tasks = Body(0), Tasks(auto_start=False)
    tasks.interval(seconds=1, name="job")(body)
    with pytest.raises(TaskStateError):
        await tasks.start()
    async with tasks:
        await anyio.sleep(5)
        assert not body.starts
        await tasks.start()
        await tasks.start()
        await anyio.sleep(2.5)
    assert body.starts == 3


async def test_the_same_task_does_not_run_twice():
    tasks, other = Tasks(), Tasks()
    tasks.interval(seconds=1, name="job")(Body(0))
    other.add_task(tasks.tasks[0])
    async with tasks:
        with pytest.raises(TaskStateError, match="runs already"):
            await other.__aenter__()
        with pytest.raises(TaskStateError, match="open already"):
            await tasks.__aenter__()


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon", None])
def test_a_shutdown_timeout_is_a_duration(timeout):
    with pytest.raises(TaskDeclarationError, match=r"^shutdown_timeout: "):
        Tasks(shutdown_timeout=timeout)


async def test_functions_run_inside_the_context_of_the_app():
    seen, tasks = [], Tasks()

    async def job():
        seen.append(Grelmicro.current())
        async with Lock("resource"):
            pass

    def in_a_thread():
        seen.append(Grelmicro.current())
        with Lock("other").from_thread:
            pass

    tasks.interval(seconds=10, name="async", lock=TaskLock())(job)
    tasks.interval(seconds=10, name="sync", lock=TaskLock())(in_a_thread)
    micro = Grelmicro(uses=[Coordination(MemoryProvider()), tasks])
    async with micro:
        while not all(task.last_fire for task in tasks.tasks):  # noqa: ASYNC110 - threads take real time
            await anyio.sleep(0.1)
    assert seen == [micro, micro]
    assert {task.last_fire.outcome for task in tasks.tasks} == {"success"}


class Resource:
    def __init__(self):
        self.open = False

    async def __aenter__(self):
        self.open = True

    async def __aexit__(self, *_):
        self.open = False


async def test_what_functions_use_is_open_before_they_start_and_until_they_have_ended():
    resource, tasks = Resource(), Tasks()
    body = Body(5, holds=lambda: resource.open)
    tasks.interval(seconds=10, name="job")(body)
    async with Grelmicro(uses=[tasks, resource]):
        await anyio.sleep(1)
        assert resource.open
    assert body.held == [True]
    assert not resource.open


async def test_three_lines_handle_a_signal(only_asyncio):
    body, tasks = Body(1), Tasks()
    tasks.interval(seconds=1, name="job")(body)
    async with tasks:
        with anyio.open_signal_receiver(signal.SIGUSR1) as signals:
            signal.raise_signal(signal.SIGUSR1)
            assert await anext(signals) == signal.SIGUSR1
    assert body.ends == ["finished"]


async def test_an_hour_of_leases_renewals_and_cron_passes_on_virtual_time(wall_clock):
    from datetime import UTC, datetime

    wall_clock.set(datetime(2026, 5, 1, 12, 0, 30, tzinfo=UTC))
    election, tasks = LeaderElection("role"), Tasks()
    led, locked, scheduled = Body(1), Body(1), Body(1)
    tasks.add_task(election)
    tasks.interval(seconds=10, name="led", leader=election)(led)
    tasks.interval(seconds=10, name="locked", lock=TaskLock())(locked)
    tasks.cron("* * * * *", name="scheduled")(scheduled)
    async with Grelmicro(uses=[MemoryProvider(), tasks]):
        await anyio.sleep(3595)
    assert 358 <= led.starts <= 360
    assert 358 <= locked.starts <= 360
    assert scheduled.starts == 60
