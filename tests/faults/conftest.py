"""The same servers as for the other tests of locks."""

from __future__ import annotations

import pytest

from tests.lock.places import SERVERS, make_place


@pytest.fixture(params=SERVERS)
def server_place(request):
    return make_place(request.param, request)
