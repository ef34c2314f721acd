import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import (
    Coordination,
    LeaderElection,
    WouldBlockError,
)
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
first = LeaderElection("mailer", worker="first")
second = LeaderElection("mailer", worker="second")


async def main() -> None:
    async with (
        Grelmicro(uses=[memory, Coordination(memory)]),
        Tasks(tasks=[first]),
    ):
        await first.wait_for_leader()
        async with first.guard():
            print("the first works")
        async with anyio.create_task_group() as group:
            await group.start(second)
            try:
                async with second.guard():
                    print("never printed")
            except WouldBlockError:
                print("the second does not lead")
            group.cancel_scope.cancel()


anyio.run(main)
# Prints:
#   the first works
#   the second does not lead
