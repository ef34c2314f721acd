import anyio

from grelmicro import Grelmicro
from grelmicro.coordination import (
    Coordination,
    Lock,
    LockBackendError,
    LockNotOwnedError,
)
from grelmicro.providers.redis import RedisProvider

redis = RedisProvider("redis://localhost:1")  # nobody listens there
micro = Grelmicro(uses=[Coordination(redis)])
stock = Lock("stock")


async def main() -> None:
    async with micro:
        try:
            async with stock:
                print("counting")
        except TimeoutError:
            print("busy: somebody else held it until our timeout")
        except LockNotOwnedError:
            print("lost: our lease ended before we did")
        except LockBackendError as error:
            print("failed:", type(error.__cause__).__name__)


anyio.run(main)
# Prints:
#   failed: ProviderError
