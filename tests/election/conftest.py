"""Elections are tested on virtual time, on asyncio and on trio, unless a test says otherwise."""

from __future__ import annotations

import pytest

from grelmicro.testing import virtual_asyncio, virtual_trio


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param
