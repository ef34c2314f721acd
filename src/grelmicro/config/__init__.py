"""Settings: where their values come from, how they change while running, how they are shown."""

from grelmicro.config._env import env_enabled, load_config
from grelmicro.config._reconfigure import Reconfigurable
from grelmicro.config._redact import mask_url

__all__ = ["Reconfigurable", "env_enabled", "load_config", "mask_url"]
