"""A real kube-apiserver over a real etcd, as `build.sh` builds them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from grelmicro.providers._kubernetes.access import connect
from tests.support._process import HOST, Server, ServerUnavailableError, free_port
from tests.support._tls import make_certificates
from tests.support.kube.strict import kubeconfig

if TYPE_CHECKING:
    from collections.abc import Sequence

ADMIN, USER = "admin-token", "lease-token"
"""Tokens of a user who may do everything, and of `lease-user`, who may do what a Role says."""

_LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


def _binary(name: str) -> Path:
    home = os.environ.get("GREL_KUBE_HOME")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    path = (Path(home) if home else cache / "grelmicro-kube") / "bin" / name
    if not os.access(path, os.X_OK):
        message = f"{name} is not built: run tests/support/kube/build.sh, or set KUBECONFIG"
        raise ServerUnavailableError(message)
    return path


class Etcd(Server):
    """One member, without TLS."""

    @override
    def _command(self) -> Sequence[object]:
        url, peer = self.url, f"http://{HOST}:{free_port()}"
        return [
            _binary("etcd"),
            *("--name=test", f"--data-dir={self.directory}/data", "--unsafe-no-fsync"),
            *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}"),
            f"--initial-cluster=test={peer}",
        ]

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"http://{HOST}:{self.port}"

    @override
    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as reply:
                return bool(json.load(reply)["health"] == "true")
        except OSError:
            return False


class _Leases(ABC):
    """Leases past the library."""

    @abstractmethod
    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Ask as the user who may do everything; an OSError tells that it was refused."""

    def leases(self) -> dict[str, dict[str, Any]]:
        """Return all Leases in the default namespace by name."""
        return {item["metadata"]["name"]: item for item in self.request("GET", _LEASES)["items"]}

    def put(self, lease: dict[str, Any]) -> dict[str, Any]:
        """Create or replace a Lease, unconditionally."""
        name = lease["metadata"]["name"]
        try:
            old = self.request("GET", f"{_LEASES}/{name}")
        except OSError:
            return dict(self.request("POST", _LEASES, lease))
        version = {"resourceVersion": old["metadata"]["resourceVersion"]}
        lease = {**lease, "metadata": {**lease["metadata"], **version}}
        return dict(self.request("PUT", f"{_LEASES}/{name}", lease))

    def delete(self, name: str) -> None:
        """Delete a Lease, unconditionally."""
        self.request("DELETE", f"{_LEASES}/{name}")


class KubeServer(Server, _Leases):
    """The API server, and its `etcd`. It validates and authorises (RBAC) as any cluster does."""

    start_timeout = 60.0

    def __init__(self) -> None:
        _binary("kube-apiserver")
        self.etcd = Etcd()
        super().__init__()

    @override
    def close(self) -> None:
        super().close()
        self.etcd.close()

    @override
    def _prepare(self) -> None:
        self.ca_file, chain = make_certificates(self.directory)
        pem = chain.read_text()
        key = re.search(
            r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----.*?-----END \1PRIVATE KEY-----\n", pem, re.DOTALL
        )
        assert key is not None
        (self.directory / "key.pem").write_text(key.group())
        (self.directory / "tokens.csv").write_text(
            f'{ADMIN},admin,admin,"system:masters"\n{USER},lease-user,lease-user\n'
        )

    @override
    def _command(self) -> Sequence[object]:
        key, certificate = self.directory / "key.pem", self.directory / "server.pem"
        return [
            _binary("kube-apiserver"),
            f"--etcd-servers={self.etcd.url}",
            *(f"--bind-address={HOST}", f"--advertise-address={HOST}", f"--secure-port={self.port}"),
            *(f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}"),
            *(f"--client-ca-file={self.ca_file}", f"--token-auth-file={self.directory}/tokens.csv"),
            f"--service-account-issuer={self.url}",
            *(f"--service-account-signing-key-file={key}", f"--service-account-key-file={key}"),
            *("--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount"),
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24"),
            f"--cert-dir={self.directory}",
        ]

    @override
    def _ready(self) -> bool:
        try:
            return bool(self.request("GET", "/api/v1/namespaces/default")["kind"] == "Namespace")
        except OSError:
            return False

    @property
    def url(self) -> str:
        """The address."""
        return f"https://{HOST}:{self.port}"

    @property
    def version(self) -> str:
        """What it is, for the summary."""
        command = [str(_binary("kube-apiserver")), "--version"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def kubeconfig(self) -> Path:
        """The configuration for the user who may do everything."""
        return self.kubeconfig_of(ADMIN)

    def kubeconfig_of(self, token: str, *, port: int | None = None) -> Path:
        """Return a configuration for a token, and for a proxy's port instead of the server's own."""
        path = self.directory / f"kubeconfig-{token}-{port or self.port}"
        path.write_text(kubeconfig(f"https://{HOST}:{port or self.port}", token, ca_file=self.ca_file))
        return path

    @override
    def request(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        with urllib.request.urlopen(request, timeout=10, context=context) as reply:
            return json.load(reply)

    def allow(self, *verbs: str) -> None:
        """Let `lease-user` do just this with Leases, in the default namespace."""
        path = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
        rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": list(verbs)}
        self._apply(f"{path}/roles", {"metadata": {"name": "leases"}, "rules": [rule] if verbs else []})
        subject = {"kind": "User", "name": "lease-user", "apiGroup": "rbac.authorization.k8s.io"}
        role = {"kind": "Role", "name": "leases", "apiGroup": "rbac.authorization.k8s.io"}
        binding = {"metadata": {"name": "leases"}, "subjects": [subject], "roleRef": role}
        self._apply(f"{path}/rolebindings", binding)

    def _apply(self, path: str, body: dict[str, Any]) -> None:
        try:
            self.request("POST", path, body)
        except urllib.error.HTTPError:
            self.request("PUT", f"{path}/{body['metadata']['name']}", body)


class GivenKube(_Leases):
    """A cluster that `KUBECONFIG` names. Its faults are not ours to make."""

    def __init__(self, path: str, version: str = "given by KUBECONFIG") -> None:
        self.kubeconfig = Path(path)
        self.version = version

    @override
    def request(self, method: str, path: str, body: Any = None) -> Any:
        with ThreadPoolExecutor(1) as pool:  # the test's own loop may be running here
            return pool.submit(asyncio.run, self._request(method, path, body)).result()

    async def _request(self, method: str, path: str, body: Any) -> Any:
        client = await connect(self.kubeconfig, None, read_environment=False)
        try:
            headers = {"Accept": "application/json", "Content-Type": "application/json"}
            reply = await client.call_api(
                path,
                method,
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
            )
            if reply.status >= HTTPStatus.BAD_REQUEST:
                raise OSError(reply.status)
            return await reply.json()
        finally:
            await client.close()
