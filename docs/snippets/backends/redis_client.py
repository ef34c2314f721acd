import anyio
from redis.asyncio import Redis

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.coordination.redis import RedisLockAdapter
from grelmicro.providers.redis import RedisProvider

client = Redis.from_url("redis://localhost:6379/0")
redis = RedisProvider.from_client(client, own=True)
locks = RedisLockAdapter(provider=redis, prefix="shop:")
micro = Grelmicro(uses=[Coordination(redis, lock=locks)])


async def main() -> None:
    async with micro, micro.coordination.lock("stock"):
        for key in sorted(await redis.client.keys("shop:*")):
            print(key.decode())


anyio.run(main)
# Prints:
#   shop:grelmicro:{32}:fence
#   shop:grelmicro:{32}:lock:stock
