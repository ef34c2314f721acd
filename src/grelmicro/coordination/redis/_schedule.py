"""Schedules in Redis."""

from __future__ import annotations

import math
import os
from typing import ClassVar

from typing_extensions import override

from grelmicro.coordination.abc import ScheduleBackend
from grelmicro.coordination.redis._adapter import RedisAdapter, load_script, milliseconds

_CLAIM = load_script("_fire", "claim")
_LAST_FIRED = load_script("_fire", "last_fired")

_MEMORY = milliseconds(400 * 86400)


class RedisScheduleAdapter(RedisAdapter, ScheduleBackend):
    """A `ScheduleBackend` on Redis, which keeps a schedule's last fire for 400 days.

    That is longer than any two fires of a cron expression with a yearly match are apart. A schedule that has
    not fired for so long is forgotten, as one that never fired.
    """

    component_keyword: ClassVar[str] = "schedule"
    kind: ClassVar[bytes] = b"schedule"

    @override
    async def claim(self, name: str, due: float) -> bool:
        if not math.isfinite(due):
            raise ValueError("due: must be a finite number of seconds")
        # The name of the claim lets the server recognise one that is sent again after its reply was lost.
        claim = os.urandom(8).hex().encode()
        call = self._run(_CLAIM, (self._key(name),), repr(float(due)).encode(), claim, _MEMORY)
        return await self._flag(call)

    @override
    async def last_fired(self, name: str) -> float | None:
        call = self._run(_LAST_FIRED, (self._key(name),))
        reply = await call.future
        if reply is None:
            return None
        try:
            return float(reply)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise self._bad_reply(call) from error
