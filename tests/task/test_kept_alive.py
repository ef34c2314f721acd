"""An interval task whose lock keeps its lease alive while the function runs."""

from __future__ import annotations

import anyio
import pytest

from grelmicro.coordination import TaskLock
from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.errors import SettingsValidationError
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

pytestmark = pytest.mark.variant("memory")


def kept_alive(backend, **settings):
    return TaskLock(
        "default", backend=backend, env_load=False, auto_extend=True, lease_duration=30, **settings
    )


async def test_a_function_that_outlasts_its_lease_runs_alone(anyio_backend):
    provider = MemoryProvider()
    running, most, ended = 0, 0, 0

    def replica():
        tasks = Tasks()

        @tasks.interval(seconds=20, name="job", lock=kept_alive(provider.lock()))
        async def job():
            nonlocal running, most, ended
            running += 1
            most = max(most, running)
            await anyio.sleep(200)
            running -= 1
            ended += 1

        return tasks

    async with replica(), replica(), replica():
        await anyio.sleep(650)
        assert ended >= 3
    assert most == 1


async def test_a_function_that_has_lost_its_lock_is_cancelled_and_said_so(anyio_backend):
    backend = MemoryLockAdapter(provider=MemoryProvider())
    tasks = Tasks()
    tokens = []
    acquire = backend.acquire

    async def noted(**arguments):
        tokens.append(arguments["token"])
        return await acquire(**arguments)

    backend.acquire = noted
    stopped = []

    @tasks.interval(seconds=20, name="job", lock=kept_alive(backend))
    async def job():
        start = anyio.current_time()
        await backend.release(name="tasklock:job", token=tokens[-1])
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(anyio.current_time() - start)

    async with tasks:
        await anyio.sleep(15)
        (task,) = tasks.tasks
        assert stopped == [pytest.approx(10, abs=0.1)]
        assert (task.last_fire.outcome, task.last_fire.reason) == ("error", "lease_lost")


def test_a_limit_shorter_than_the_lease_is_refused_when_the_task_is_declared():
    lock = TaskLock("default", env_load=False, auto_extend=True, max_hold_duration=100)
    with pytest.raises(SettingsValidationError, match="max_hold_duration"):
        Tasks().interval(seconds=600, name="job", lock=lock)(lambda: None)
