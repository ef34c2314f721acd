"""One body, every backend that wakes whoever waits."""

from __future__ import annotations

import pytest

from grelmicro.coordination import _line
from tests.lock.places import make_place

PLACES = [
    "memory",
    pytest.param("memory-trio", marks=pytest.mark.variant("memory")),
    "redis",
    "postgres",
]


@pytest.fixture(params=PLACES)
def where(request):
    return request.param


@pytest.fixture
def anyio_backend(where):
    return "trio" if where.endswith("trio") else "asyncio"


@pytest.fixture
def place(where, request):
    return make_place(where.partition("-")[0], request)


@pytest.fixture
async def near(place):
    async with place.near() as backend:
        yield backend


@pytest.fixture
async def other(place):
    """Return the backend of another process."""
    async with place.near() as backend:
        yield backend


@pytest.fixture
def only_signals(monkeypatch):
    """Let nobody ask for safety's sake: whoever is served in time was woken."""
    monkeypatch.setattr(_line, "_SAFETY_POLL", 1000.0)
