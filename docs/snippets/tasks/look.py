import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import ScheduledTask, Tasks

memory = MemoryProvider()
task = Tasks()
micro = Grelmicro(uses=[memory, Coordination(memory), task])


@task.interval(seconds=60, lock=TaskLock(), name="clean-up")
async def clean_up() -> None:
    raise RuntimeError("no broom")


async def main() -> None:
    async with micro:
        await anyio.sleep(90)
        for one in task.tasks:
            if isinstance(one, ScheduledTask):
                print(one.name, one.last_fire.outcome, one.last_fire.reason)
                print(dict(one.counts.outcomes))


anyio.run(main)
# Prints:
#   clean-up error body_error
#   {<Outcome.ERROR: 'error'>: 2}
