import asyncio

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.redis import RedisProvider

redis = RedisProvider("redis://localhost:6379/0")
micro = Grelmicro(uses=[Coordination(redis)])
basket = Lock("basket")


async def main() -> None:
    async with micro:
        await basket.acquire()
        waiting = asyncio.create_task(basket.acquire())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.wait([waiting])
        print("cancelled:", waiting.cancelled())
        await basket.release()
        print("somebody holds it:", await basket.locked())


asyncio.run(main())
# Prints:
#   cancelled: True
#   somebody holds it: False
