"""Both kinds of API server, and what the Kubernetes tests share."""

from __future__ import annotations

import pytest

from grelmicro.providers.kubernetes import KubernetesProvider
from tests.kube.support import FIXTURES


@pytest.fixture(params=FIXTURES)
def place(request):
    """Run the test on the strict Lease API, and on a real API server."""
    return request.param


@pytest.fixture
def kube(request, place):
    """Return the API server of the place."""
    return request.getfixturevalue(FIXTURES[place])


@pytest.fixture
async def provider(kube):
    """Return a provider for that server."""
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
        yield provider


@pytest.fixture
async def other(kube):
    """Return a provider as another process has it."""
    async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
        yield provider
