import anyio
import pytest

from docs.snippets.testing.shop import micro, sell, stock
from grelmicro.coordination import Coordination
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing import virtual_asyncio, virtual_trio

pytestmark = pytest.mark.anyio


LOOPS = [virtual_asyncio(), virtual_trio()]


@pytest.fixture(params=LOOPS, ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
async def app():
    async with micro.override(Coordination(MemoryProvider())), micro:
        yield micro


async def test_an_item_is_sold(app):
    assert await sell(["apple"]) == "apple"


async def test_a_seller_that_died_blocks_nobody_for_longer_than_a_minute(app):
    async def die():
        await stock.acquire()

    async with anyio.create_task_group() as group:
        group.start_soon(die)
    start = anyio.current_time()
    assert await sell(["apple"]) == "apple"
    assert 59 < anyio.current_time() - start < 61
