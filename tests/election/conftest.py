"""Elections are tested on virtual time, on asyncio and on trio, unless a test says otherwise."""

from __future__ import annotations

import pytest

from grelmicro.testing import virtual_asyncio, virtual_trio


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def addresses(request):
    """Return the servers to test with; scenarios that mostly wait run on all of them at once."""
    found, missing = [], []
    for fixture in ("redis_url", "postgres_url"):
        try:
            found.append(request.getfixturevalue(fixture))
        except pytest.skip.Exception as reason:
            missing.append(str(reason))
    if not found:
        pytest.skip("; ".join(missing))
    return found
