"""What the Redis adapters share: scripts, the layout of keys, and replies that are what they should be.

Keys are `{prefix}grelmicro:{{shard}}:{kind}:{name}`. The shard, one of a fixed number, is a hash of the name
and the key's hash tag: a cluster keeps all keys of a shard together, shards spread over its nodes, and
nothing that a user writes into a name is ever taken for a tag.
"""

from __future__ import annotations

import math
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

from typing_extensions import override

from grelmicro.coordination._adapter import ProviderAdapter
from grelmicro.coordination._identity import random_hex
from grelmicro.errors import ProviderError, SettingsValidationError
from grelmicro.providers._redis.calls import Script
from grelmicro.providers.redis import RedisProvider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from grelmicro.providers._redis.calls import Call

SHARDS = 64
"""How many hash tags there are, and with them counters of fencing tokens. Changing it moves every key."""


def load_script(*names: str) -> Script:
    """Return the script that the named files, after what all scripts share, make up."""
    directory = files("grelmicro.coordination.redis").joinpath("lua")
    return Script(b"".join(directory.joinpath(f"{name}.lua").read_bytes() for name in ("_primary", *names)))


def milliseconds(duration: float) -> bytes:
    """Return seconds as whole milliseconds, rounded up.

    Raises:
        ValueError: it is no length of time.
    """
    if not 0 < duration < math.inf:
        raise ValueError("duration: must be a finite number of seconds, more than 0")
    # The inner rounding keeps 1.1 s from becoming 1101 ms.
    return b"%d" % math.ceil(round(duration * 1000, 6))


class RedisAdapter(ProviderAdapter[RedisProvider]):
    """Base of the Redis adapters. `prefix` keeps applications that share a server apart.

    Raises:
        SettingsValidationError: the prefix holds a brace, which would be taken for the keys' hash tag, or
            cannot be encoded; or the provider is another vendor's.
    """

    kind: ClassVar[bytes]
    """What keeps its keys apart from those of the other adapters."""

    def __init__(self, *, provider: RedisProvider | None = None, prefix: str = "") -> None:
        if not isinstance(provider, RedisProvider | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SettingsValidationError(
                f"provider: must be a RedisProvider, not a {type(provider).__name__}"
            )
        self._prefix = _checked_prefix(prefix)
        super().__init__(provider)

    @classmethod
    @override
    def _new_provider(cls) -> RedisProvider:
        return RedisProvider()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(provider={self._provider!r}, prefix={self._prefix.decode()!r})"

    def _key(self, name: str) -> bytes:
        return self._shard_key(name, b"%b:%b" % (self.kind, name.encode()))

    def _shard_key(self, name: str, rest: bytes) -> bytes:
        return b"%bgrelmicro:{%d}:%b" % (self._prefix, crc32(name.encode()) % SHARDS, rest)

    def _new_channel(self) -> str:
        """Return a channel that no other adapter listens to."""
        return (b"%bgrelmicro:%b:" % (self._prefix, self.kind)).decode() + random_hex()

    def _run(self, script: Script, keys: Sequence[bytes], *arguments: bytes, finish: bool = False) -> Call:
        return self._provider.dispatcher.run(script, keys, arguments, finish=finish)

    async def _flag(self, call: Call) -> bool:
        """Return a reply of 1 or 0 as a boolean."""
        reply = await call.future
        if reply not in (0, 1):
            raise self._bad_reply(call)
        return reply == 1

    @staticmethod
    def _bad_reply(call: Call) -> ProviderError:
        """Return the error for a reply that no script gives."""
        return ProviderError(f"Redis sent a reply of an unexpected shape (key {call.key.decode()!r})")


def _checked_prefix(prefix: str) -> bytes:
    problem = None
    if not isinstance(prefix, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        problem = f"must be a string, not a {type(prefix).__name__}"
    elif "{" in prefix or "}" in prefix:
        problem = "must not contain { or }, which mark the part of a key that decides its cluster slot"
    else:
        try:
            return prefix.encode()
        except UnicodeEncodeError:
            problem = "must encode as UTF-8"
    raise SettingsValidationError(f"prefix: {problem}")
