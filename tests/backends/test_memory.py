"""The memory backend keeps every promise, on asyncio and on trio."""

from __future__ import annotations

import pytest

from grelmicro.coordination.memory import MemoryLockAdapter
from grelmicro.providers.memory import MemoryProvider
from grelmicro.testing.conformance import LockBackendSuite

pytestmark = pytest.mark.variant("memory")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


class TestLocks(LockBackendSuite):
    @pytest.fixture
    def provider(self):
        return MemoryProvider()

    @pytest.fixture
    async def backend(self, provider):
        async with MemoryLockAdapter(provider=provider) as backend:
            yield backend

    @pytest.fixture
    def peer(self, provider, backend):
        return provider.lock()
