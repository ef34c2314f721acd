import signal

import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, TaskLock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.task import Tasks

memory = MemoryProvider()
task = Tasks(shutdown_timeout=20)
micro = Grelmicro(uses=[memory, Coordination(memory), task])


@task.interval(seconds=60, lock=TaskLock())
async def clean_up() -> None:
    print("cleaning up", flush=True)
    await anyio.sleep(0.2)
    print("cleaned up")


async def main() -> None:
    async with micro:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as stop:
            await anext(stop)
    print("bye")


anyio.run(main)
# Prints:
#   cleaning up
#   cleaned up
#   bye
