import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock, LockNotOwnedError
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])
stock = Lock(
    "stock",
    lease_duration=10,
    auto_extend=True,
    max_hold_duration=60,
)


async def count_shelves(number: int) -> None:
    async with stock:
        await anyio.sleep(number * 6)
        print(f"{number} shelves counted")


async def main() -> None:
    async with micro:
        await count_shelves(5)
        try:
            await count_shelves(50)
        except LockNotOwnedError:
            print("stopped when the lock was no longer held")


anyio.run(main)
# Prints:
#   5 shelves counted
#   stopped when the lock was no longer held
