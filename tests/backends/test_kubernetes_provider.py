"""Where a Kubernetes provider has its settings from, what it refuses and shows, and where it can be used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap

import anyio
import anyio.to_thread
import pytest
import trustme
from kubernetes_asyncio.client import ApiClient, Configuration, CoordinationV1Api
from kubernetes_asyncio.config import incluster_config
from pydantic import ValidationError

from grelmicro.coordination import Coordination, Lock
from grelmicro.coordination.kubernetes import (
    KubernetesLeaderElectionAdapter,
    KubernetesLockAdapter,
    KubernetesScheduleAdapter,
)
from grelmicro.errors import OutOfContextError, ProviderError, SettingsValidationError
from grelmicro.providers._kubernetes import access
from grelmicro.providers.kubernetes import KubernetesConfig, KubernetesProvider
from grelmicro.providers.memory import MemoryProvider
from tests.support.kube.strict import TOKEN, kubeconfig

LONG = 30.0
ADAPTERS = (KubernetesLockAdapter, KubernetesLeaderElectionAdapter, KubernetesScheduleAdapter)


@pytest.fixture(autouse=True)
def no_environment(monkeypatch, tmp_path):
    for name in ("KUBECONFIG", "NAMESPACE", "CONTEXT", "CALL_TIMEOUT", "SERVICE_HOST", "SERVICE_PORT"):
        monkeypatch.delenv(f"KUBERNETES_{name}", raising=False)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(access, "_DEFAULT", tmp_path / "home" / "config")


@pytest.fixture
def kube(strict_kube):
    return strict_kube


@pytest.fixture
def two_contexts(kube, tmp_path):
    """Return a kubeconfig whose current context leads nowhere."""
    path = tmp_path / "two"
    path.write_text(
        f"""\
apiVersion: v1
kind: Config
current-context: nowhere
clusters:
  - {{name: test, cluster: {{server: "{kube.url}"}}}}
  - {{name: nowhere, cluster: {{server: "http://127.0.0.1:1"}}}}
users: [{{name: admin, user: {{token: "{TOKEN}"}}}}]
contexts:
  - {{name: test, context: {{cluster: test, user: admin}}}}
  - {{name: nowhere, context: {{cluster: nowhere, user: admin}}}}
"""
    )
    return path


async def host_of(provider):
    async with provider:
        return provider.client.configuration.host


class TestSettings:
    def test_without_settings(self):
        assert KubernetesProvider().config == KubernetesConfig()
        assert KubernetesProvider().namespace == "default"
        assert KubernetesProvider().call_timeout == 5.0

    def test_from_the_environment(self, monkeypatch):
        for name, value in {
            "KUBECONFIG": "/k",
            "CONTEXT": "c",
            "NAMESPACE": "n",
            "CALL_TIMEOUT": "2",
        }.items():
            monkeypatch.setenv(f"KUBERNETES_{name}", value)
        config = KubernetesProvider().config
        assert (str(config.kubeconfig), config.context, config.namespace, config.call_timeout) == (
            "/k",
            "c",
            "n",
            2,
        )
        assert KubernetesProvider(namespace="mine").namespace == "mine"
        assert KubernetesProvider(env_load=False).namespace == "default"
        assert KubernetesProvider(env_prefix="OTHER_").namespace == "default"

    def test_what_a_pod_has_in_its_environment_does_no_harm(self, monkeypatch):
        monkeypatch.setenv("KUBERNETES_PORT", "tcp://10.0.0.1:443")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        assert KubernetesProvider().config == KubernetesConfig()

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("namespace", "A"),
            ("namespace", "a_b"),
            ("namespace", "-a"),
            ("namespace", ""),
            ("namespace", "x" * 64),
            ("context", ""),
            ("call_timeout", 0),
            ("call_timeout", True),
            ("call_timeout", "soon"),
        ],
    )
    def test_a_setting_that_breaks_a_rule_is_named_and_not_shown(self, field, value):
        with pytest.raises(SettingsValidationError, match=field) as caught:
            KubernetesProvider(**{field: value})
        assert len(str(value)) < 3 or str(value) not in str(caught.value).replace(field, "")

    def test_a_configuration(self):
        config = KubernetesConfig(namespace="n")
        assert KubernetesProvider.from_config(config).config is config
        with pytest.raises(TypeError):
            KubernetesProvider.from_config({"namespace": "n"})
        with pytest.raises(ValidationError):
            KubernetesConfig(colour="red")
        with pytest.raises(ValidationError):
            config.namespace = "m"

    def test_it_shows_where_it_leads(self):
        assert repr(KubernetesProvider()) == "KubernetesProvider(namespace='default')"
        provider = KubernetesProvider(kubeconfig="/k", context="c", namespace="n")
        assert repr(provider) == "KubernetesProvider(kubeconfig='/k', context='c', namespace='n')"

    async def test_it_shows_no_secret(self, kube):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
            assert TOKEN not in repr(provider) + repr(provider.lock()) + repr(provider.config)


class TestAccess:
    async def test_a_kubeconfig(self, kube):
        assert await host_of(KubernetesProvider(kubeconfig=kube.kubeconfig)) == kube.url
        assert await host_of(KubernetesProvider(kubeconfig=str(kube.kubeconfig))) == kube.url

    async def test_a_context(self, kube, two_contexts):
        assert await host_of(KubernetesProvider(kubeconfig=two_contexts)) == "http://127.0.0.1:1"
        assert await host_of(KubernetesProvider(kubeconfig=two_contexts, context="test")) == kube.url

    async def test_the_variable_that_kubectl_reads(self, kube, monkeypatch, tmp_path):
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{os.pathsep}{kube.kubeconfig}")
        assert await host_of(KubernetesProvider()) == kube.url
        with pytest.raises(SettingsValidationError, match="no such file"):
            await host_of(KubernetesProvider(env_load=False))

    async def test_the_file_that_kubectl_reads(self, kube, monkeypatch):
        monkeypatch.setattr(access, "_DEFAULT", kube.kubeconfig)
        assert await host_of(KubernetesProvider()) == kube.url

    async def test_a_pods_own_cluster(self, kube, monkeypatch, tmp_path):
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "CERT"))
        (tmp_path / "TOKEN").write_text("pods-token")
        for name in ("TOKEN", "CERT"):
            monkeypatch.setattr(incluster_config, f"SERVICE_{name}_FILENAME", str(tmp_path / name))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        async with KubernetesProvider() as provider:
            configuration = provider.client.configuration
            assert configuration.host == "https://10.0.0.1:443"
            assert configuration.ssl_ca_cert == str(tmp_path / "CERT")
            assert (await configuration.auth_settings())["BearerToken"]["value"] == "Bearer pods-token"
        assert await host_of(KubernetesProvider(kubeconfig=kube.kubeconfig)) == kube.url

    async def test_no_cluster_at_all(self):
        with pytest.raises(SettingsValidationError, match="no such file"):
            await host_of(KubernetesProvider())

    @pytest.mark.parametrize("text", ["", "[]", "a: [", "current-context: x", "token: s3cret: x"])
    async def test_a_kubeconfig_that_cannot_be_used_is_not_shown(self, tmp_path, text):
        path = tmp_path / "broken"
        path.write_text(text)
        with pytest.raises(SettingsValidationError, match="kubeconfig") as caught:
            await host_of(KubernetesProvider(kubeconfig=path))
        assert "s3cret" not in str(caught.value)

    async def test_a_context_that_is_not_there(self, two_contexts):
        with pytest.raises(SettingsValidationError, match="context"):
            await host_of(KubernetesProvider(kubeconfig=two_contexts, context="other"))

    async def test_credentials_of_a_kubeconfig_are_read_again_now_and_then(self, kube, tmp_path, monkeypatch):
        path, token = tmp_path / "kubeconfig", tmp_path / "token"
        token.write_text("old")
        path.write_text(kubeconfig(kube.url, "x").replace('token: "x"', f'tokenFile: "{token}"'))
        monkeypatch.setattr(access, "_REFRESH", 0.2)
        async with KubernetesProvider(kubeconfig=path) as provider:
            with pytest.raises(ProviderError, match="credentials"):
                await provider.check()
            token.write_text(TOKEN)
            await asyncio.sleep(0.3)
            await provider.check()


class TestClients:
    @pytest.fixture
    async def client(self, kube):
        configuration = type.__call__(Configuration)
        configuration.host = kube.url
        configuration.api_key["BearerToken"] = f"Bearer {TOKEN}"
        async with ApiClient(configuration=configuration) as client:
            yield client

    @pytest.mark.parametrize("own", [True, False])
    async def test_a_given_client_is_closed_when_it_is_owned(self, client, own, unique):
        async with KubernetesProvider.from_client(client, own) as provider:
            assert provider.client is client
            assert await provider.lock().acquire(name=unique, token="a", duration=LONG)
        assert client.rest_client.pool_manager.closed is own

    async def test_a_given_client_has_a_namespace_beside_it(self, client, kube, unique):
        provider = KubernetesProvider.from_client(client, namespace="other", call_timeout=2)
        assert (provider.namespace, provider.call_timeout) == ("other", 2)
        assert repr(provider) == "KubernetesProvider.from_client(ApiClient, namespace='other')"
        async with provider.lock() as locks:
            await locks.acquire(name=unique, token="a", duration=LONG)
            assert locks.lease_name(unique) in kube.leases("other")

    async def test_what_is_no_client_is_refused(self, client):
        for wrong in (None, "http://x", CoordinationV1Api(client)):
            with pytest.raises(SettingsValidationError, match="client"):
                KubernetesProvider.from_client(wrong)

    async def test_the_client_is_there_for_other_things(self, kube, unique):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
            await provider.lock().acquire(name=unique, token="a", duration=LONG)
            lease = await CoordinationV1Api(provider.client).read_namespaced_lease(
                provider.lock().lease_name(unique), "default"
            )
            assert lease.spec.holder_identity == "a"


class TestOpening:
    async def test_it_opens_for_the_first_and_closes_with_the_last(self, kube):
        provider = KubernetesProvider(kubeconfig=kube.kubeconfig)
        for _ in range(2):
            async with provider:
                async with provider.lock():
                    pass
                client = provider.client
                assert not client.rest_client.pool_manager.closed
            assert client.rest_client.pool_manager.closed

    async def test_closed_it_says_so(self, kube):
        provider = KubernetesProvider(kubeconfig=kube.kubeconfig)
        for use in (lambda: provider.client, lambda: provider.exchange):
            with pytest.raises(OutOfContextError):
                use()
        with pytest.raises(OutOfContextError):
            await provider.check()
        with pytest.raises(OutOfContextError):
            await provider.lock().locked(name="x")

    async def test_a_health_check_needs_no_more_than_get(self, own_strict_kube):
        own_strict_kube.forbid("list", "create", "update", "delete", "watch")
        async with KubernetesProvider(kubeconfig=own_strict_kube.kubeconfig) as provider:
            await provider.check()
            own_strict_kube.forbid("get")
            with pytest.raises(ProviderError, match="get"):
                await provider.check()

    async def test_it_is_used_on_its_own_loop(self, kube):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
            locks = provider.lock()

            def elsewhere():
                return asyncio.run(locks.locked(name="x"))

            with pytest.raises(OutOfContextError, match="another event loop"):
                await anyio.to_thread.run_sync(elsewhere)

    @pytest.mark.parametrize("anyio_backend", ["trio"])
    async def test_it_needs_asyncio(self, kube):
        with pytest.raises(OutOfContextError, match="asyncio only"):
            await KubernetesProvider(kubeconfig=kube.kubeconfig).__aenter__()

    async def test_threads_find_it(self, kube, unique):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig).lock() as locks:
            lock = Lock(unique, backend=locks, env_load=False)

            def use():
                with lock.from_thread:
                    return True

            assert await anyio.to_thread.run_sync(use)

    def test_a_forked_child_is_told(self, kube):
        program = f"""
            import asyncio, os, sys
            from grelmicro.errors import OutOfContextError
            from grelmicro.providers.kubernetes import KubernetesProvider

            async def main():
                async with KubernetesProvider(kubeconfig={str(kube.kubeconfig)!r}) as provider:
                    await provider.check()
                    if os.fork() == 0:
                        try:
                            await provider.check()
                        except OutOfContextError as error:
                            os._exit(0 if "forked" in str(error) else 2)
                        os._exit(1)
                    _, status = os.wait()
                    sys.exit(os.waitstatus_to_exitcode(status))

            asyncio.run(main())
        """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        subprocess.run(command, check=True, timeout=30)


class TestAdapters:
    def test_they_make_a_provider_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("KUBERNETES_NAMESPACE", "n")
        for adapter in ADAPTERS:
            assert adapter().provider.namespace == "n"
            assert "namespace='n'" in repr(adapter())

    async def test_namespaces_and_prefixes_keep_applications_apart(self, kube, unique):
        async with KubernetesProvider(kubeconfig=kube.kubeconfig) as provider:
            sides = [
                KubernetesLockAdapter(provider=provider, namespace=namespace, prefix=prefix)
                for namespace in ("default", "other")
                for prefix in ("", "a", "b")
            ]
            for side in sides:
                assert await side.acquire(name=unique, token=repr(side), duration=LONG)
            assert sides[3].lease_name(unique) in kube.leases("other")
            assert sides[4].lease_name(unique).startswith("a-lock-")

    @pytest.mark.parametrize("adapter", ADAPTERS)
    def test_what_they_refuse(self, adapter):
        for settings in ({"namespace": "A"}, {"prefix": "\0"}, {"prefix": "\ud800"}, {"prefix": 1}):
            with pytest.raises(SettingsValidationError, match=next(iter(settings))):
                adapter(**settings)
        with pytest.raises(SettingsValidationError, match="provider"):
            adapter(provider=MemoryProvider())

    async def test_a_component_uses_them_all(self, kube, unique):
        provider = KubernetesProvider(kubeconfig=kube.kubeconfig)
        async with Coordination(provider) as coordination:
            async with coordination.lock(unique) as handle:
                assert handle.fencing_token > 0
            assert isinstance(coordination.election_backend, KubernetesLeaderElectionAdapter)
            assert await coordination.schedule_backend.claim(unique, 1.0) is True

    def test_without_the_extra_the_import_names_it(self):
        program = """
            import sys
            sys.modules["kubernetes_asyncio"] = None
            import grelmicro.coordination
            try:
                import grelmicro.providers.kubernetes
            except ImportError as error:
                assert '".[kubernetes]"' in str(error), error
            else:
                raise AssertionError
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, timeout=30)

    def test_the_client_is_imported_only_for_who_asks(self):
        program = (
            "import sys, grelmicro, grelmicro.coordination; assert 'kubernetes_asyncio' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
