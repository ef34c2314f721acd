"""The workers of the fault tests, on Kubernetes; its client is imported once, before the forks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grelmicro.coordination.kubernetes  # noqa: F401
from grelmicro.providers.kubernetes import KubernetesProvider
from tests.faults import restless, worker


def _provider(_server: str, kubeconfig: str) -> KubernetesProvider:
    return KubernetesProvider(kubeconfig=kubeconfig, env_load=False)


worker.new_provider = restless.new_provider = _provider


def work(name: str, kind: str, *arguments: str) -> None:
    """Do the work of either kind of worker."""
    if kind == "restless":
        restless.work(name, "kubernetes", *arguments)
        return

    def end_early(*_: object) -> None:
        worker.Notebook(Path(arguments[-1]) / name).note("end")
        os._exit(0)

    signal.signal(signal.SIGTERM, end_early)  # until the worker has a handler of its own
    worker.work(name, "kubernetes", *arguments)
