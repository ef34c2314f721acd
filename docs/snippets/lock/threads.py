import anyio
from anyio import to_thread

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
stock = Lock("stock")


def count() -> str:  # blocking code
    with stock.from_thread:
        return "counted"


def try_to_count() -> str:
    lock = stock.from_thread
    try:
        lock.acquire(timeout=0.1)
    except TimeoutError:
        return "somebody else counts"
    try:
        return "counted"
    finally:
        lock.release()


async def main() -> None:
    async with micro:
        print(await to_thread.run_sync(count))
        async with stock:
            print(await to_thread.run_sync(try_to_count))


anyio.run(main)
# Prints:
#   counted
#   somebody else counts
