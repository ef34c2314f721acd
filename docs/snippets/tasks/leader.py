import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, LeaderElection
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
election = LeaderElection("janitor")
task = Tasks(tasks=[election])
micro = Grelmicro(uses=[memory, Coordination(memory), task])


@task.interval(seconds=10, leader=election)
async def clean_up() -> None:
    print("cleaning up as the leader")


async def main() -> None:
    async with micro:
        await anyio.sleep(15)


anyio.run(main)
# Prints:
#   cleaning up as the leader
