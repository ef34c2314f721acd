import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import TaskRouter, Tasks

memory = MemoryProvider()
router = TaskRouter()


@router.cron("30 2 * * *", timezone="Europe/Zurich")
async def report() -> None:
    print("reporting")


task = Tasks()
task.include_router(router)
micro = Grelmicro(uses=[memory, Coordination(memory), task])


async def main() -> None:
    async with micro:
        for one in task.tasks:
            print(one.name, "next fires at", one.next_fire_time)


anyio.run(main)
# Prints:
#   __main__:report next fires at ...:30:00+00:00
