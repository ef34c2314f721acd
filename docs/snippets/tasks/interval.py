import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
task = Tasks()
micro = Grelmicro(uses=[memory, Coordination(memory), task])


@task.interval(seconds=60, lock=TaskLock())
async def clean_up() -> None:
    print("cleaning up")


async def main() -> None:
    async with micro:
        await anyio.sleep(90)


anyio.run(main)
# Prints:
#   cleaning up
#   cleaning up
