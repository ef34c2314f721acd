import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.memory import MemoryProvider
from grelmicro.providers.redis import RedisProvider

redis = RedisProvider("redis://redis.example:6379/0")
micro = Grelmicro(uses=[Coordination(redis)])
stock = Lock("stock")


async def main() -> None:
    async with micro.override(Coordination(MemoryProvider())), micro:
        async with stock:
            print("held in", type(stock.backend).__name__)
        print("Redis was opened:", redis.is_open)


anyio.run(main)
# Prints:
#   held in MemoryLockAdapter
#   Redis was opened: False
