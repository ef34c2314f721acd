import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
stock = Lock("stock", lease_duration=10)


async def main() -> None:
    async with micro, stock as handle:
        for shelf in range(3):
            await anyio.sleep(6)  # the work on one shelf
            print(f"shelf {shelf} with {handle.expires_in():.0f} s to spare")
            await stock.extend()


anyio.run(main)
# Prints:
#   shelf 0 with 4 s to spare
#   shelf 1 with 4 s to spare
#   shelf 2 with 4 s to spare
