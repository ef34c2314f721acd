import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])


async def main() -> None:
    async with micro:
        stock = micro.coordination.lock("stock", lease_duration=10)
        async with stock as handle:
            print(f"held for {handle.expires_in():.0f} s at most")
        print("held by anybody:", await stock.locked())


anyio.run(main)
# Prints:
#   held for 10 s at most
#   held by anybody: False
