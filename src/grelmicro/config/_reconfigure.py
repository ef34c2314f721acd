"""Swapping a primitive's configuration while it runs."""

from __future__ import annotations

from typing import Generic, TypeVar

import anyio
from pydantic import BaseModel

from grelmicro.config._env import checked
from grelmicro.errors import SettingsValidationError

ConfigT = TypeVar("ConfigT", bound=BaseModel)

_IDENTITY_FIELD = "worker"


class Reconfigurable(Generic[ConfigT]):
    """Something with one frozen configuration that can be swapped as a whole.

    Calls that are under way keep the configuration that they started with; the next ones see the new one.
    """

    def __init__(self, config: ConfigT) -> None:
        self._config: ConfigT = config
        self._swap = anyio.Lock()

    @property
    def config(self) -> ConfigT:
        """The configuration in force."""
        return self._config

    async def reconfigure(self, new_config: ConfigT) -> None:
        """Put `new_config` in force: all of it, or, when applying it fails, none.

        An equal configuration changes nothing. Concurrent calls take their turn. `worker` may be left out of
        the new configuration, but not changed.

        Raises:
            TypeError: the configuration is of another class than the one in force.
            SettingsValidationError: it names another worker, or, being a copy that was updated without being
                validated, breaks a rule (also a ValueError).
        """
        if type(new_config) is not type(self._config):
            msg = f"expected a {type(self._config).__name__}, not a {type(new_config).__name__}"
            raise TypeError(msg)
        checked(new_config)
        async with self._swap:
            old = self._config
            new_config = self._keep_identity(old, new_config)
            if new_config == old:
                return
            self._config = new_config
            try:
                await self._on_reconfigured(old, new_config)
            except BaseException:
                self._config = old
                raise

    def _keep_identity(self, old: ConfigT, new: ConfigT) -> ConfigT:
        before, after = getattr(old, _IDENTITY_FIELD, None), getattr(new, _IDENTITY_FIELD, None)
        if before == after:
            return new
        if after is None:
            return new.model_copy(update={_IDENTITY_FIELD: before})
        msg = f"{_IDENTITY_FIELD}: cannot change while running; build a new instance instead"
        raise SettingsValidationError(msg)

    async def _on_reconfigured(self, old: ConfigT, new: ConfigT) -> None:
        """Apply a swap that has just been made; raising undoes it."""
