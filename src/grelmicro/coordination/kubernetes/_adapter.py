"""What the Kubernetes adapters share: where a name is kept, and the exchange that changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from grelmicro.config import load_config
from grelmicro.coordination._adapter import ProviderAdapter
from grelmicro.errors import OutOfContextError, SettingsValidationError
from grelmicro.providers._kubernetes.names import place_of
from grelmicro.providers.kubernetes import KubernetesConfig, KubernetesProvider
from grelmicro.types import MAX_SECONDS

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from grelmicro.providers._kubernetes.operation import Decide

    Matters = Callable[[Mapping[str, Any]], bool]


class KubernetesAdapter(ProviderAdapter[KubernetesProvider]):
    """Base of the Kubernetes adapters. `prefix` keeps applications that share a namespace apart.

    Without a namespace, it is the provider's.

    Raises:
        SettingsValidationError: the namespace is no DNS label, the prefix holds a NUL or cannot be encoded,
            or the provider is another vendor's.
    """

    kind: ClassVar[str]
    """What keeps its Leases apart from those of the other adapters."""

    def __init__(
        self,
        *,
        provider: KubernetesProvider | None = None,
        namespace: str | None = None,
        prefix: str = "",
    ) -> None:
        if not isinstance(provider, KubernetesProvider | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsValidationError(
                f"provider: must be a KubernetesProvider, not a {type(provider).__name__}"
            )
        super().__init__(provider)
        if namespace is None:
            namespace = self._provider.namespace
        else:  # the provider's rule
            load_config(KubernetesConfig, {"namespace": namespace}, env_prefix="", env_load=False)
        self._namespace = namespace
        self._prefix = _checked_prefix(prefix)

    @classmethod
    @override
    def _new_provider(cls) -> KubernetesProvider:
        return KubernetesProvider()

    def lease_name(self, name: str) -> str:
        """Return the name of the Lease in which `name` is kept, for `kubectl` and for other tools."""
        return place_of(self._namespace, self.kind, self._prefix, name).lease

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(provider={self._provider!r}, namespace={self._namespace!r}, "
            f"prefix={self._prefix!r})"
        )

    @property
    def wakes(self) -> bool:
        """Whether wake-ups reach this process now: whether its watch is up."""
        try:
            return self._provider.exchange.watch(self._namespace).is_up
        except OutOfContextError:
            return False

    def _submit(
        self, name: str, decide: Decide, *, writes: bool = True, finish: bool = False
    ) -> asyncio.Future[Any]:
        place = place_of(self._namespace, self.kind, self._prefix, name)
        return self._provider.exchange.submit(place, decide, writes=writes, finish=finish)

    def _listen(self, name: str, matters: Matters, wake: Callable[[], object]) -> Callable[[], None]:
        """Call `wake` when the Lease of a name was deleted, or has changed so that it matters."""

        def hear(lease: Mapping[str, Any] | None) -> None:
            if lease is None or matters(lease):
                wake()

        return self._provider.exchange.watch(self._namespace).listen(self.lease_name(name), hear)


def is_free(lease: Mapping[str, Any]) -> bool:
    """Say whether a Lease was given up, as the API server sent it."""
    match lease:
        case {"spec": {"holderIdentity": str() as holder}}:
            return not holder
        case _:
            return True


def checked_lease(token: str, duration: float) -> float:
    """Return the length of a lease, for a token that can hold one.

    Raises:
        ValueError: the token is empty, or the duration no positive number of at most `MAX_SECONDS`.
    """
    if not token:
        raise ValueError("token: must not be empty")
    if not 0 < duration <= MAX_SECONDS:
        raise ValueError(f"duration: must be a number above 0 and at most {MAX_SECONDS}")
    return float(duration)


def _checked_prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        problem = f"must be a string, not a {type(prefix).__name__}"
    elif "\0" in prefix:
        problem = "must not contain a NUL character"
    else:
        try:
            prefix.encode()
        except UnicodeEncodeError:
            problem = "must encode as UTF-8"
        else:
            return prefix
    raise SettingsValidationError(f"prefix: {problem}")
