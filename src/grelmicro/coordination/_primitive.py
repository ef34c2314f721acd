"""What every coordination primitive shares: a checked name, a configuration, and a backend found at use."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from grelmicro import _ambient
from grelmicro.config import Reconfigurable
from grelmicro.config._env import checked, env_prefix_for, load_config
from grelmicro.coordination._names import check_name
from grelmicro.errors import SettingsValidationError

BackendT = TypeVar("BackendT")


class BaseLockConfig(BaseModel):
    """Settings that all primitives share. Frozen; error messages never show the rejected value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)

    worker: str | UUID | None = None
    """Name of this worker; None makes a random one per instance and process."""


ConfigT = TypeVar("ConfigT", bound=BaseLockConfig)


class LockPrimitive(Reconfigurable[ConfigT], Generic[ConfigT, BackendT]):
    """Base of the primitives. A subclass names its configuration and its backend's place in the component."""

    _config_class: ClassVar[type[Any]]
    _env_kind: ClassVar[str]
    _component_attribute: ClassVar[str]
    _backend_methods: ClassVar[tuple[str, ...]]

    def __init__(
        self,
        name: str,
        *,
        backend: BackendT | str | None,
        env_prefix: str | None,
        env_load: bool | None,
        **keywords: Any,
    ) -> None:
        check_name(name)
        config = load_config(
            self._config_class,
            keywords,
            env_prefix=env_prefix_for(self._env_kind, name) if env_prefix is None else env_prefix,
            env_load=env_load,
        )
        self._bind(name, config, backend)

    def _bind(self, name: str, config: ConfigT, backend: BackendT | str | None) -> None:
        super().__init__(config)
        self._name = name
        self._backend = self._check_backend(backend)

    def _check_backend(self, backend: BackendT | str | None) -> BackendT | str | None:
        if backend is None or isinstance(backend, str):
            return backend
        missing = [name for name in self._backend_methods if not callable(getattr(backend, name, None))]
        if isinstance(backend, type) or missing:
            lacks = "is a class" if isinstance(backend, type) else f"lacks {', '.join(missing)}()"
            msg = (
                f"backend: {getattr(backend, '__name__', type(backend).__name__)} {lacks}; pass an instance "
                "of a backend, the name of a registered component, or nothing to use the active app's"
            )
            raise SettingsValidationError(msg)
        return backend

    @classmethod
    def from_config(cls, name: str, config: ConfigT, *, backend: BackendT | str | None = None) -> Self:
        """Build one from a ready configuration; the environment is not read.

        Raises:
            SettingsValidationError: the name breaks the naming rule (also a ValueError).
            TypeError: the configuration is of another class.
        """
        check_name(name)
        if not isinstance(config, cls._config_class):
            msg = f"config: expected a {cls._config_class.__name__}, not a {type(config).__name__}"
            raise TypeError(msg)
        self = cls.__new__(cls)
        self._bind(name, checked(config), backend)
        return self

    @property
    def name(self) -> str:
        """The name that replicas agree on."""
        return self._name

    @property
    def backend(self) -> BackendT:
        """The backend: the given instance, else what the active app has now.

        Raises:
            OutOfContextError: no instance was given and no active app has a fitting component.
        """
        given = self._backend
        if given is not None and not isinstance(given, str):
            return given
        wanted_by = f"{type(self).__name__} {self._name!r}"
        component = _ambient.component("coordination", given or "default", wanted_by=wanted_by)
        backend: BackendT = getattr(component, self._component_attribute)
        return backend
