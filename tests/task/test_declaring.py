"""Declaring tasks: what is refused, what a name is, what routers do."""

from __future__ import annotations

import functools
import subprocess
import sys

import anyio
import pytest

import grelmicro.task
from grelmicro.coordination import LeaderElection, TaskLock
from grelmicro.coordination.memory import (
    MemoryLeaderElectionAdapter,
    MemoryLockAdapter,
    MemoryScheduleAdapter,
)
from grelmicro.errors import OutOfContextError
from grelmicro.task import TaskDeclarationError, TaskRouter, Tasks, TaskStateError
from tests.task.support import open_for


async def job():
    pass


def sync_job():
    pass


class Service:
    async def job(self):
        pass

    async def __call__(self):
        pass


async def test_a_function_is_named_after_its_module_and_stays_as_it_is():
    tasks = Tasks()
    assert tasks.interval(seconds=1)(job) is job
    assert tasks.cron("* * * * *")(sync_job) is sync_job
    assert [task.name for task in tasks.tasks] == [f"{__name__}:job", f"{__name__}:sync_job"]


def nested():
    async def inner():
        pass

    return inner


@pytest.mark.parametrize(
    "function",
    [lambda: None, nested(), Service().job, Service(), functools.partial(job)],
    ids=["lambda", "nested", "method", "callable object", "partial"],
)
async def test_what_has_no_lasting_name_needs_one(function):
    tasks = Tasks()
    for declare in (tasks.interval(seconds=1), tasks.cron("* * * * *")):
        with pytest.raises(TaskDeclarationError, match=r"^name: must be given"):
            declare(function)
    tasks.interval(seconds=1, name="mine")(function)
    await open_for(tasks, 0.5)
    assert tasks.tasks[0].last_fire.outcome == "success"


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud800", 5])
def test_a_name_follows_the_rule_of_all_names(name):
    with pytest.raises(TaskDeclarationError, match=r"^name: "):
        Tasks().interval(seconds=1, name=name)(job)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "often", None, True])
def test_an_interval_is_a_duration(seconds):
    with pytest.raises(TaskDeclarationError, match=r"^seconds: "):
        Tasks().interval(seconds=seconds)


def generator():
    yield


async def async_generator():
    yield


@pytest.mark.parametrize("function", [5, lambda needed: needed, generator, async_generator, Service.job])
def test_a_function_can_be_called_without_arguments(function):
    with pytest.raises(TaskDeclarationError, match=r"^function: "):
        Tasks().interval(seconds=1, name="job")(function)


@pytest.mark.parametrize("parameter", ["leader", "lock", "sync"])
@pytest.mark.parametrize(
    "value", [5, "name", TaskLock, TaskLock("x").from_thread], ids=["int", "str", "class", "sync"]
)
def test_a_guard_is_something_to_enter(parameter, value):
    with pytest.raises(TaskDeclarationError, match=rf"^{parameter}: "):
        Tasks().interval(seconds=1, **{parameter: value})(job)


def test_what_cron_takes_is_checked_where_it_is_declared():
    tasks = Tasks()
    with pytest.raises(TaskDeclarationError, match=r"^expr: "):
        tasks.cron("0 0 31 2 *")
    with pytest.raises(TaskDeclarationError, match=r"^timezone: "):
        tasks.cron("* * * * *", timezone="Nowhere")
    with pytest.raises(TaskDeclarationError, match=r"^misfire_grace_seconds: "):
        tasks.cron("* * * * *", misfire_grace_seconds=0)
    with pytest.raises(TaskDeclarationError, match=r"^backend: "):
        tasks.cron("* * * * *", backend=MemoryLockAdapter())
    with pytest.raises(TaskDeclarationError, match=r"^backend: "):
        tasks.cron("* * * * *", backend=MemoryScheduleAdapter)
    with pytest.raises(TaskDeclarationError, match=r"^sync: "):
        tasks.cron("* * * * *", sync=5)


def test_errors_are_value_errors_and_do_not_repeat_the_value():
    with pytest.raises(ValueError, match="timezone") as caught:
        Tasks().cron("* * * * *", timezone="s3cret")
    assert "s3cret" not in str(caught.value)


def test_two_tasks_do_not_share_a_name():
    tasks, router = Tasks(), TaskRouter()
    tasks.interval(seconds=1, name="job")(job)
    with pytest.raises(TaskDeclarationError, match="another task has it already: job"):
        tasks.interval(seconds=1, name="job")(job)
    router.interval(seconds=1, name="job")(job)
    with pytest.raises(TaskDeclarationError, match="another task has it already: job"):
        tasks.include_router(router)


async def test_routers_bring_their_tasks_also_those_added_later():
    tasks, router, inner = Tasks(), TaskRouter(), TaskRouter()
    router.include_router(inner)
    tasks.include_router(router)
    inner.interval(seconds=1, name="late")(job)
    router.every(seconds=1, name="other")(job)
    assert [task.name for task in tasks.tasks] == ["other", "late"]
    await open_for(tasks, 0.5)
    assert {task.last_fire.outcome for task in tasks.tasks} == {"success"}


def test_a_router_does_not_contain_itself():
    outer, inner = TaskRouter(), TaskRouter()
    outer.include_router(inner)
    for router in (inner, outer):
        with pytest.raises(TaskDeclarationError, match=r"^router: "):
            inner.include_router(router)
    with pytest.raises(TaskDeclarationError, match=r"^router: "):
        outer.include_router(5)


async def test_nothing_is_added_while_the_tasks_run():
    tasks, router = Tasks(), TaskRouter()
    tasks.include_router(router)
    for _ in range(2):
        async with tasks:
            for target in (tasks, router):
                with pytest.raises(TaskStateError):
                    target.interval(seconds=1, name="late")(job)
    router.interval(seconds=1, name="late")(job)


async def test_any_task_can_be_added():
    election = LeaderElection("role", backend=MemoryLeaderElectionAdapter())
    tasks = Tasks(tasks=[election])
    with pytest.raises(TaskDeclarationError, match=r"^task: "):
        tasks.add_task(job)
    with pytest.raises(TaskDeclarationError, match=r"^task: "):
        tasks.add_task(LeaderElection)
    async with tasks:
        await election.wait_for_leader()
    assert not election.is_running()


async def test_a_missing_backend_is_said_at_the_start():
    for declare in (
        lambda tasks: tasks.cron("* * * * *"),
        lambda tasks: tasks.cron("* * * * *", backend="other"),
        lambda tasks: tasks.interval(seconds=1, lock=TaskLock()),
    ):
        tasks = Tasks()
        declare(tasks)(job)
        with pytest.raises(OutOfContextError, match="backend="):
            await tasks.__aenter__()
        assert anyio.get_current_task() is not None
    with pytest.raises(TaskStateError):
        await tasks.start()


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_the_package_loads_no_extra():
    extras = ["cronsim", "redis", "asyncpg", "trio"]
    code = f"import sys, grelmicro.task; print([name for name in {extras} if name in sys.modules])"
    assert run(code).strip() == "[]"


def test_a_missing_extra_is_named():
    code = """
import sys
sys.modules["cronsim"] = None
from grelmicro.task import Tasks
try:
    Tasks().cron("* * * * *")
except ImportError as error:
    print(error)
"""
    assert 'pip install ".[cron]"' in run(code)


def test_the_public_names_are_those_that_are_listed():
    listed = set(grelmicro.task.__all__)
    assert listed == {name for name in dir(grelmicro.task) if name[0].isupper()}
