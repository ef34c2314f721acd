"""Servers in containers, for machines where the wheels have no server and a Docker engine answers."""

from __future__ import annotations

import contextlib
import gc
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tests.support._process import ServerUnavailableError, wait_until
from tests.support.kube.server import GivenKube

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from testcontainers.core.container import DockerContainer
    from testcontainers.k3s import K3SContainer

T = TypeVar("T")


@contextlib.contextmanager
def _container(image: str, port: int, ready: str, **environment: str) -> Iterator[str]:
    container = _start(image, port, environment)
    try:
        wait_until(lambda: ready in _log(container), ready, timeout=60)
        yield f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"
    finally:
        container.stop()


@contextlib.contextmanager
def kubernetes() -> Iterator[GivenKube]:
    """Run k3s; yields its API server."""
    container = _quietly(_connect_k3s)
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "kubeconfig"
            path.write_text(container.config_yaml())
            yield GivenKube(str(path), "k3s in a container")
    finally:
        container.stop()


def _connect_k3s() -> K3SContainer:
    try:
        from docker.errors import DockerException
        from testcontainers.k3s import K3SContainer
    except ImportError:
        message = "kube-apiserver is not built, and testcontainers is not installed"
        raise ServerUnavailableError(message) from None
    with contextlib.suppress(DockerException):
        return K3SContainer("rancher/k3s:v1.33.5-k3s1").start()
    message = "kube-apiserver is not built (tests/support/kube/build.sh), and no Docker engine answers"
    raise ServerUnavailableError(message)


def _start(image: str, port: int, environment: dict[str, str]) -> DockerContainer:
    return _quietly(lambda: _connect(image, port, environment))


def _quietly(connect: Callable[[], T]) -> T:
    # A client that finds no engine leaves sockets behind, which warn when they are collected.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return connect()
        finally:
            gc.collect()


def _connect(image: str, port: int, environment: dict[str, str]) -> DockerContainer:
    try:
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer
    except ImportError:
        message = "no server in the wheels, and testcontainers is not installed"
        raise ServerUnavailableError(message) from None
    try:
        return DockerContainer(image).with_exposed_ports(port).with_envs(**environment).start()
    except DockerException:
        pass
    message = "no server in the wheels, and no Docker engine answers"
    raise ServerUnavailableError(message)


def _log(container: DockerContainer) -> str:
    return "".join(part.decode(errors="replace") for part in container.get_logs())


@contextlib.contextmanager
def redis() -> Iterator[str]:
    """Run Valkey; yields its address."""
    with _container("valkey/valkey:9", 6379, "Ready to accept connections") as address:
        yield f"redis://{address}/0"


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run PostgreSQL; yields its address."""
    settings = {"POSTGRES_HOST_AUTH_METHOD": "trust"}
    with _container("postgres:18", 5432, "PostgreSQL init process complete", **settings) as address:
        yield f"postgresql://postgres@{address}/postgres"
