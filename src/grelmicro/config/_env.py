"""Keywords over environment over defaults, once for every configuration."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grelmicro.errors import SettingsValidationError

ConfigT = TypeVar("ConfigT", bound=BaseModel)

_FALSE = frozenset({"0", "false", "no", "off", "n", "f"})


def env_enabled(env_load: bool | None) -> bool:  # noqa: FBT001 - passed on as it came
    """Say whether the environment is read: `env_load` when given, else `GREL_ENV_LOAD`, else yes."""
    if env_load is not None:
        return env_load
    return os.environ.get("GREL_ENV_LOAD", "").strip().lower() not in _FALSE


def env_prefix_for(kind: str, name: str) -> str:
    """Derive the prefix of a primitive's variables: `GREL_LOCK_CART_`, for the default one `GREL_LOCK_`."""
    if name == "default":
        return f"GREL_{kind}_"
    return f"GREL_{kind}_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}_"


def load_config(
    config: type[ConfigT],
    keywords: Mapping[str, Any],
    *,
    env_prefix: str,
    env_load: bool | None,
    env_ignore: Container[str] = (),
) -> ConfigT:
    """Build a configuration: a keyword that is not None wins over the environment, and that over the default.

    Fields in `env_ignore` are not looked up in the environment. Only values that came from a keyword or the
    environment count in `model_fields_set`.

    Raises:
        SettingsValidationError: a value breaks a rule. The message names its field and where it came from.
    """
    values = {key: value for key, value in keywords.items() if value is not None}
    sources: dict[str, str] = {}
    if env_enabled(env_load):
        for field in config.model_fields:
            variable = f"{env_prefix}{field.upper()}"
            if field not in values and field not in env_ignore and (value := os.environ.get(variable)):
                values[field] = value
                sources[field] = variable
    try:
        return config(**values)
    except ValidationError as error:
        raise settings_error(config.__name__, error, sources) from None


def checked(config: ConfigT) -> ConfigT:
    """Return `config`; a copy that was updated has not been validated yet.

    Raises:
        SettingsValidationError: it breaks a rule.
    """
    try:
        type(config).model_validate(config.model_dump())
    except ValidationError as error:
        raise settings_error(type(config).__name__, error) from None
    return config


def settings_error(
    owner: str, error: ValidationError, sources: Mapping[str, str] | None = None
) -> SettingsValidationError:
    """Say which field breaks which rule, without the value that does."""
    problems: list[str] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        field = ".".join(str(part) for part in item["loc"])
        variable = (sources or {}).get(field)
        where = f"{field} (from {variable})" if variable else field
        text = item["msg"].removeprefix("Value error, ")
        problems.append(f"{where}: {text}" if where else text)
    return SettingsValidationError(f"invalid {owner}: " + "; ".join(problems))
