from grelmicro import Grelmicro
from grelmicro.coordination import Coordination, Lock
from grelmicro.providers.redis import RedisProvider

redis = RedisProvider("redis://redis.example:6379/0")
micro = Grelmicro(uses=[Coordination(redis)])
stock = Lock("stock", lease_duration=60)


async def sell(shelf: list[str]) -> str:
    async with stock:
        return shelf.pop()
