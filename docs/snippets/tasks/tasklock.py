import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock, WouldBlockError
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
nightly = TaskLock("nightly", min_hold_duration=30, lease_duration=300)


async def run() -> None:
    try:
        async with nightly:
            print("running")
            await anyio.sleep(200)
            await nightly.refresh()  # another 300 s
            await anyio.sleep(200)
    except WouldBlockError:
        print("somebody else runs it, or has just run it")


async def main() -> None:
    async with micro, anyio.create_task_group() as group:
        group.start_soon(run)
        await anyio.sleep(1)
        await run()


anyio.run(main)
# Prints:
#   running
#   somebody else runs it, or has just run it
