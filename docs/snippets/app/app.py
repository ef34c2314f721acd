import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
stock = Lock("stock")  # made at import, bound to the active app at each use


async def main() -> None:
    async with micro:
        async with stock:
            print("the stock is ours")
        async with micro.coordination.lock("prices"):
            print("the prices are ours")
        print("this is the active app:", Grelmicro.current() is micro)


anyio.run(main)
# Prints:
#   the stock is ours
#   the prices are ours
#   this is the active app: True
