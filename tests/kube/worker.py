"""The workers of the fault tests, on Kubernetes; its client is imported once, before the forks."""

from __future__ import annotations

import grelmicro.coordination.kubernetes  # noqa: F401
from grelmicro.providers.kubernetes import KubernetesProvider
from tests.faults import restless, worker


def _provider(_server: str, kubeconfig: str) -> KubernetesProvider:
    return KubernetesProvider(kubeconfig=kubeconfig, env_load=False)


worker.new_provider = restless.new_provider = _provider


def work(name: str, kind: str, *arguments: str) -> None:
    """Do the work of either kind of worker."""
    (restless if kind == "restless" else worker).work(name, "kubernetes", *arguments)
