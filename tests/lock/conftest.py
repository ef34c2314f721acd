"""One body, every backend."""

from __future__ import annotations

import pytest

from tests.lock.places import PLACES, SERVERS, make_place


@pytest.fixture(params=PLACES)
def place(request):
    return make_place(request.param, request)


@pytest.fixture(params=SERVERS)
def server_place(request):
    return make_place(request.param, request)


@pytest.fixture
async def near(place):
    async with place.near() as backend:
        yield backend


@pytest.fixture
async def far(place):
    """Return a backend behind a network that can be disturbed, and that network."""
    async with place.far() as pair:
        yield pair


@pytest.fixture
def place_of(request):
    return lambda name: make_place(name, request)
