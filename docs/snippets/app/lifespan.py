from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from grelmicro import Grelmicro
from grelmicro.coordination import Coordination
from grelmicro.providers.memory import MemoryProvider

memory = MemoryProvider()
micro = Grelmicro(uses=[memory, Coordination(memory)])


@asynccontextmanager
async def lifespan(app: object) -> AsyncIterator[None]:  # FastAPI(lifespan=…)
    async with micro:
        yield


async def buy() -> str:  # a request handler
    async with micro.coordination.lock("stock"):
        return "sold"
