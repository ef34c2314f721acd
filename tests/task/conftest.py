"""Tasks are tested on virtual time, on asyncio and on trio, unless a test says otherwise."""

from __future__ import annotations

import anyio
import pytest

from grelmicro.coordination import _clock
from grelmicro.testing import virtual_asyncio, virtual_trio


@pytest.fixture(params=[virtual_asyncio(), virtual_trio()], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def only_asyncio(anyio_backend):
    if anyio_backend[0] != "asyncio":
        pytest.skip("asyncio's own cancellation")


class WallClock:
    """Wall time that runs with the loop's virtual time, and can be set."""

    def __init__(self):
        self._offset = None

    def __call__(self):
        return anyio.current_time() + self._offset

    def set(self, moment):
        self._offset = moment.timestamp() - anyio.current_time()

    def step(self, seconds):
        self._offset += seconds


@pytest.fixture
def wall_clock(monkeypatch):
    clock = WallClock()
    monkeypatch.setattr(_clock, "wall_time", clock)
    return clock
