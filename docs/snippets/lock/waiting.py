import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock, WouldBlockError
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
stock = Lock("stock")


async def somebody_else(ready: anyio.Event) -> None:
    async with stock:
        ready.set()
        await anyio.sleep(3)


async def main() -> None:
    ready = anyio.Event()
    async with micro, anyio.create_task_group() as group:
        group.start_soon(somebody_else, ready)
        await ready.wait()
        try:
            await stock.acquire_nowait()
        except WouldBlockError:
            print("not free now")
        try:
            await stock.acquire(timeout=1)
        except TimeoutError:
            print("not free within a second")
        await stock.acquire()
        try:
            print("ours, however long it took")
        finally:
            await stock.release()


anyio.run(main)
# Prints:
#   not free now
#   not free within a second
#   ours, however long it took
