import anyio

from grelmicro.coordination import Lock, LockConfig
from grelmicro.coordination.memory import MemoryLockAdapter

stock = Lock("stock", backend=MemoryLockAdapter(), lease_duration=10)


async def main() -> None:
    async with stock as handle:
        await stock.reconfigure(LockConfig(lease_duration=30))
        print(f"{handle.expires_in():.0f} s: the lease stays as it is")
        await stock.extend()
        print(f"{handle.expires_in():.0f} s: the next request sets it anew")


anyio.run(main)
# Prints:
#   10 s: the lease stays as it is
#   30 s: the next request sets it anew
