"""What the providers with settings share: where those come from, and what is shown of them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import BaseModel, ConfigDict
from typing_extensions import override

from grelmicro.config import env_enabled, load_config
from grelmicro.providers._base import DEFAULT_CALL_TIMEOUT, Provider
from grelmicro.types import Seconds


class ProviderConfig(BaseModel):
    """Settings that all providers share. Frozen; error messages never show the rejected value."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    call_timeout: Seconds = DEFAULT_CALL_TIMEOUT
    """Seconds that one call may take."""


ConfigT = TypeVar("ConfigT", bound=ProviderConfig)


class ConfiguredProvider(Provider, Generic[ConfigT]):
    """A provider with one frozen configuration."""

    _config_class: ClassVar[type[Any]]
    _config: ConfigT

    @abstractmethod
    def _set_up(self, config: ConfigT) -> None:
        """Begin a life with these settings, without opening anything."""

    @classmethod
    def from_config(cls, config: ConfigT) -> Self:
        """Build one from a ready configuration; the environment is not read.

        Raises:
            TypeError: the configuration is of another class.
        """
        if not isinstance(config, cls._config_class):
            raise TypeError(f"config: expected a {cls._config_class.__name__}, not a {type(config).__name__}")
        self = cls.__new__(cls)
        self._set_up(config)
        return self

    @property
    def config(self) -> ConfigT:
        """The settings in force."""
        return self._config

    @property
    @override
    def call_timeout(self) -> float:
        return self._config.call_timeout


def load_addressed(
    config: type[ConfigT],
    keywords: Mapping[str, Any],
    *,
    place: Collection[str],
    credentials: Collection[str],
    env_prefix: str,
    env_load: bool | None,
) -> ConfigT:
    """Build a configuration that says where a server is by a URL, or by the fields of `place`.

    A URL outdoes what the environment says of place and credentials, and a keyword for the place a URL of the
    environment's.

    Raises:
        SettingsValidationError: a value breaks a rule.
    """
    given = {name for name, value in keywords.items() if value is not None}
    ignore: set[str] = set()
    if "url" in given:
        ignore = {*place, *credentials}
    elif given & set(place):
        ignore = {"url"}
    elif env_enabled(env_load) and os.environ.get(f"{env_prefix}URL"):
        ignore = {*place, *credentials}
    return load_config(
        config, keywords, env_prefix=env_prefix, env_load=env_load, env_ignore=frozenset(ignore)
    )
